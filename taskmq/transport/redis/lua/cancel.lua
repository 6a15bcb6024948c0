-- Cancel: ends what waits, asks what runs to stop.
--
-- ARGV   ids
-- reply  for each the letter of its state afterwards (task.lua; of a waiting one never, for it has ended), "" when unknown

-- @include commit

local ids = {unpack(ARGV, 3)}
load_tasks(ids)
local out = {}
for i = 1, #ids do
  local t = task(ids[i])
  if not t then
    out[i] = ''
  else
    local q = queue(t.x.q)
    if not match(t.st, '[SFCE]') then
      promote(q)
      local f = flow(q, code(t))
      if t.st == 'R' then
        t.cancel = true
        change(t)
      else
        local in_flow = t.st ~= 'D'
        drop(q, t, f)
        finish(q, t, 'C')
        if in_flow then place(q, f) end
        look_for_missed(q)
      end
    end
    out[i] = t.st
    if t.deleted then T[t.id] = false end
  end
end
for i = 1, #QN do finish_verb(QN[i]) end
commit()
return out
