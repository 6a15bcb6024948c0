-- A queue as it stands. Reads only.
--
-- ARGV   3 queue
-- reply  {} when there is none, else conf, "served,flows,next start or empty", scheduled, running, retrying, dead,
--        since when the oldest of those that are next is ready, or "", how many in place are not ready yet, counts:<q>,
--        specs:<q>, and by priority how many are due but not promoted

-- @include commit

local name = ARGV[3]
if redis.call('EXISTS', K('state', name)) == 0 then return {} end
load_queues({name}, true)
local q = Q[name]
local after, upto = '(' .. I(now), I(now)
local function counted(what, from, to) return redis.call('ZCOUNT', K(what, name), from, to) end

-- ── the tasks that are next ──

local oldest
local function look(m)
  local t = task(ref_id(m))
  local at = t and (t.c.r or available_at(t))
  if at and (not oldest or at < oldest) then oldest = at end
end
local function each_rank(entries, see)
  if q.aging > 0 then
    local m, s = entries(0, 10)
    if m then see(m, s) end
    return
  end
  for rank = 0, 9 do
    local m, s = entries(rank, rank + 1)
    if m then see(m, s) end
  end
end
local function first_of(key)
  return function(rank, upper)
    local r
    if q.aging > 0 then
      r = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
    else
      r = redis.call('ZRANGEBYSCORE', key, I(rank * PB), '(' .. I(upper * PB), 'WITHSCORES', 'LIMIT', 0, 1)
    end
    return r[1], tonumber(r[2])
  end
end
local lanes, turns = of_specs(q, 'line'), of_specs(q, 'turns')
for i = 1, #lanes do each_rank(first_of(lanes[i].key), look) end
local heads = {}
for i = 1, #turns do
  each_rank(first_of(turns[i].key), function(m, s)
    local rank = q.aging > 0 and 0 or floor(s / PB)
    local h = heads[rank]
    if not h or s < h[1] or (s == h[1] and before(m, h[2])) then heads[rank] = {s, m} end
  end)
end
for _, h in pairs(heads) do
  local head = redis.call('ZRANGE', K2('part', name, q.aging > 0 and sub(h[2], 10) or h[2]), 0, 0)
  if head[1] then look(head[1]) end
end

-- ── what is due but was not promoted, and what stands in line but must wait ──

local by_priority = {}
for p = 0, 9 do by_priority[p] = 0 end
local function tally(what, from, to, by)
  local at = 0
  while at < 10000 do
    local got = redis.call('ZRANGEBYSCORE', K(what, name), from, to, 'LIMIT', at, 1000)
    for i = 1, #got do
      local p = tonumber(sub(got[i], 9, 9))
      by_priority[p] = by_priority[p] + by
    end
    if #got < 1000 then return end
    at = at + 1000
  end
end
if q.due and q.due <= now then
  tally('delayed', '-inf', upto, 1)
  tally('retries', '-inf', upto, 1)
end
local in_place = counted('inplace', after, '+inf')
if in_place > 0 then tally('inplace', after, '+inf', -1) end

local at = next_start_at(q)
local priorities = {}
for p = 0, 9 do priorities[#priorities + 1] = I(by_priority[p]) end
return {
  q.conf or '', format('%.17g', q.served) .. ',' .. I(q.flows) .. ',' .. (at and I(at) or ''),
  counted('delayed', after, '+inf'), redis.call('ZCARD', K('leases', name)),
  counted('retries', after, '+inf') + in_place, redis.call('ZCARD', K('dead', name)), oldest and I(oldest) or '',
  concat(priorities, ','), redis.call('HGETALL', K('counts', name)), redis.call('HGETALL', K('specs', name))
}
