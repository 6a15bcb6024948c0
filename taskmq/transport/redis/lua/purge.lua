-- Purge: deletes ended tasks' records; a partition that one of them stopped goes on.
--
-- ARGV   ids, each once
-- reply  how many there were

-- @include commit

local ids, n = {unpack(ARGV, 3)}, 0
load_tasks(ids)
for i = 1, #ids do
  local t = task(ids[i])
  if t and match(t.st, '[SFCE]') then
    local q = queue(t.x.q)
    local f = flow(q, code(t))
    if f.exists and f.held == t.id then
      promote(q)
      f.held = nil
      touch(q, f)
      place(q, f)
    end
    delete(q, t)
    n = n + 1
  end
end
for i = 1, #QN do finish_verb(QN[i]) end
commit()
return n
