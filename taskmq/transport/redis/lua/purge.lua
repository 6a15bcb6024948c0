-- Purge: deletes ended tasks' records.
--
-- ARGV   ids, each once
-- reply  how many there were

-- @include commit

local ids, n = {unpack(ARGV, 3)}, 0
load_tasks(ids)
for i = 1, #ids do
  local t = task(ids[i])
  if t and match(t.st, '[SFCE]') then
    delete(queue(t.x.q), t)
    n = n + 1
  end
end
commit()
return n
