-- Replay: queues dead letters again, at the end of the line of a queue.
--
-- ARGV   3 queue or "" for their own, then ids
-- reply  "1", "0" (it is not dead) or "2" (depart.lua: it is on its way to another queue) for each, in one string

-- @include revive

local ids = {unpack(ARGV, 4)}
load_tasks(ids)
local out = {}
for i = 1, #ids do
  local t = task(ids[i])
  out[i] = '0'
  if t and t.st == 'F' and t.x.m then
    out[i] = '2'
  elseif t and t.st == 'F' then
    out[i] = '1'
    local own = queue(t.x.q)
    local target = ARGV[3] == '' and own or queue(ARGV[3])
    promote(target)
    if target ~= own then free_key(t, true) end
    local f = flow(own, code(t))
    if f.exists and f.held == t.id then
      f.held = nil
      touch(own, f)
      place(own, f)
    end
    revive(own, target, t, next_seq(), now)
    look_for_missed(own)
    look_for_missed(target)
  end
end
for i = 1, #QN do finish_verb(QN[i]) end
commit()
return concat(out)
