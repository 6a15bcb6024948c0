-- Forget a queue that has no unfinished tasks: its ended tasks by the thousand, and at last itself.
--
-- ARGV   3 queue
-- reply  0: it has unfinished tasks, nothing was done; 1: call again; 2: it is gone

-- @include commit

local name = ARGV[3]
local counts = redis.call('HGETALL', K('counts', name))
for i = 1, #counts, 2 do
  if byte(counts[i]) == 104 and counts[i + 1] ~= '0' then return 0 end
end
if not redis.call('GET', K('state', name)) then return 2 end
local q = queue(name)
local ids = redis.call('ZRANGE', K('done', name), 0, 999)
if #ids > 0 then
  load_tasks(ids)
  for i = 1, #ids do
    if task(ids[i]) then delete(q, task(ids[i])) else zrem(zq(q, 'done'), ids[i]) end
  end
  commit()
  return 1
end
local held = redis.call('ZRANGE', K('keys', name), 0, 999)
if #held > 0 then
  for i = 1, #held do
    write('DEL', key_name(name, held[i]))
    zrem(zq(q, 'keys'), held[i])
  end
  commit()
  return 1
end
local own = {
  'conf', 'state', 'served', 'specs', 'flows', 'counts', 'delayed', 'retries', 'inplace', 'blocks', 'leases', 'expiring', 'done', 'dead',
  'keys', 'owing', 'wake'
}
for i = 1, #own do write('DEL', K(own[i], name)) end
for spec = 1, #q.specs do write('DEL', K('turns:' .. spec, name), K('line:' .. spec, name)) end
if not home then
  write('ZREM', P .. 'queues', name)
  write('SREM', P .. 'live', name)
end
send()
return 2
