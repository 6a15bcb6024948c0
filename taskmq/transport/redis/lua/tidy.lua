-- Housekeeping of one queue: promotes, reaps, expires, and deletes what has been kept long enough; one batch each.
--
-- ARGV   3 queue, 4 most of each
-- reply  {promoted, reaped, expired, deleted, 1 if there may be more}

-- @include commit

if redis.call('EXISTS', K('state', ARGV[3])) == 0 then return {0, 0, 0, 0, 0} end -- only listed, never used
local q, most = queue(ARGV[3]), min(BATCH, tonumber(ARGV[4]))
local promoted, more = promote(q, most)
local reaped, more_ended = reap(q, most)
local expired, more_late = expire(q, most)
finish_verb(q)

local done, ids = walk({zq(q, 'done')}, 1, most), {}
while #ids < most do
  local id, at = done()
  if not id or at > now then break end
  ids[#ids + 1] = id
end
load_tasks(ids)
for i = 1, #ids do
  local t = task(ids[i])
  if t and not t.deleted then delete(q, t) else zrem(zq(q, 'done'), ids[i]) end
end
local ended = walk({zq(q, 'keys')}, 1, most)
for _ = 1, most do
  local key, at = ended()
  if not key or at > now then break end
  zrem(zq(q, 'keys'), key)
  write('DEL', key_name(q.name, key))
end

-- Virtual time grows one turn a round, and must stay below one priority in a turn's score: long before, all goes back, but
-- not to zero, where those that wait behind it at a lower priority would meet.
if q.v > 2 ^ 48 and q.aging == 0 then
  local by = q.v - 2 ^ 47
  q.v, q.j, q.plain.tag, q.dirty = 2 ^ 47, max(0, q.j - by), max(0, q.plain.tag - by), true
  local states = redis.call('HGETALL', K('flows', q.name))
  know_flows(q)
  for i = 1, #states, 2 do
    q.read_texts[states[i]] = states[i + 1]
    local f = flow(q, states[i])
    f.tag = max(0, tag_of(q, f) - by)
    touch(q, f)
  end
  local turns = of_specs(q, 'turns')
  for i = 1, #turns do
    local entries = walk({turns[i]}, 1000, 1000)
    local m = entries()
    while m do
      local f = q.fl[m]
      if not f then
        q.read_texts[m] = false
        f = flow(q, m)
        f.tag = max(0, tag_of(q, f) - by)
        touch(q, f)
      end
      m = entries()
    end
  end
end
commit()
more = more or more_ended or reaped >= most or more_late or #ids == BATCH
return {promoted, reaped, expired, #ids, more and 1 or 0}
