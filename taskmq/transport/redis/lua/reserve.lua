-- Reserve: promotes, reaps and expires what is due in these queues, then claims the next tasks by the claim rule.
--
-- ARGV   3 limit, 4 lease, 5 worker (JSON), 6 batch (12 hex), 7 whether tasks with a limit may be taken,
--        8 number of (handler, version) pairs or -1 for all, 9 "0", or which queues to look at only when they are live:
--        "1" those named behind a digest, "2" those of the set of this digest, 10 plan: "" or, in a cluster, "peek" or
--        "heads,followers,look,seen,served" (cluster.py), then the pairs as "handler\0version", then the queues
-- reply  "?", "" if the digest is not known: say "1"; else "1" if the claim stopped early, next due time or "", then for
--        each queue that gave: name, lease, aging ("1"), and the claimed tasks' records (without a key) after an empty name
--        peek: "1" if there is more to do, next due time or "", served, weight, the bands of the heads in their order,
--        for each follower its head's position and a comma, "1" if heads wait to be parked, number of lines if it has
--        neither partitions nor limits, else 0 (looks.py)
-- atomic: one script chooses queue and flow, and marks the tasks

-- @include commit
-- @include claim
-- @include short

local function without_repeats(words, from)
  local list, seen = {}, {}
  for i = from, #words do
    if not seen[words[i]] then
      seen[words[i]] = true
      list[#list + 1] = words[i]
    end
  end
  return list
end

-- The names of those queues of a set that have something to look at; nil: nobody knows the set. To send a thousand
-- names in every call made it 3.5 times as long as a call for the ten live ones alone; so it is 1.1 times.
local function live_of_set(digest)
  local key = P .. 'set:' .. digest
  if redis.call('EXISTS', key) == 0 then return nil end
  return redis.call('SINTER', P .. 'live', key)
end

local function remember_set(digest, names)
  local key = P .. 'set:' .. digest
  for from = 1, #names, 4000 do write('SADD', key, unpack(names, from, min(from + 3999, #names))) end
  write('EXPIRE', key, '86400')
end

-- The specs of a queue that this claim can run; nil when that is all.
local function runs(q, pairs_given, ARGV)
  if pairs_given < 0 and ARGV[7] == '1' then return nil end
  local able, can = {}, {}
  for i = 11, 10 + max(0, pairs_given) do able[ARGV[i]] = true end
  local specs = redis.call('HGETALL', K('specs', q.name))
  for i = 1, #specs, 2 do
    local name, number = specs[i], tonumber(specs[i + 1])
    if (pairs_given < 0 or able[sub(name, 1, -3)]) and (ARGV[7] == '1' or sub(name, -1) == '0') then can[number] = true end
  end
  return can
end

local function when_next(names)
  local next_due
  for i = 1, #names do
    local q = Q[names[i]]
    if q.due then
      for k = 1, 4 do
        local _, at = zfirst(zq(q, DUE[k]))
        if at and (not next_due or at < next_due) then next_due = at end
      end
    end
    local start_at = next_start_at(q)
    if start_at and (not next_due or start_at < next_due) then next_due = start_at end
  end
  return next_due and I(next_due) or ''
end


-- What a claim of n would take here, without taking it. What was done with what is due is sent at last: pages of sets are
-- read by their ranks, which must not move meanwhile.
local function peek(names, candidates, n, more)
  collect()
  local heads = choose(candidates, n)
  local bands, followers, position = {}, {}, {}
  for i = 1, #picks do
    local c, v, m = picks[i][1], picks[i][2], picks[i][3]
    if i <= heads then
      bands[i], position[v] = c.aging and '0' or sub(m, 1, 1), i
    else
      followers[#followers + 1] = position[v] .. ','
    end
  end
  local q = Q[names[1]]
  local next_due = #picks == 0 and when_next(names) or ''
  send()
  return {
    more and '1' or '0', next_due, real(q.served), I(q.weight), concat(bands),
    concat(followers), parked_now > 0 and '1' or '0', q.flows == 0 and not q.limited and I(#q.specs) or '0'
  }
end

-- Take out of `live` what has nothing to look at.
local function retire(q)
  if not q.live or q.due or next_start_at(q) then return end
  local sets = of_specs(q, 'line')
  if q.flows > 0 then
    local turns = of_specs(q, 'turns')
    for i = 1, #turns do sets[#sets + 1] = turns[i] end
  end
  if q.limited then sets[#sets + 1] = zset(K('owing', q.name)) end
  for i = 1, #sets do
    if zfirst(sets[i]) then return end
  end
  q.live, q.dirty = false, true
  write('SREM', P .. 'live', q.name)
end
-- @body

local n, lease = tonumber(ARGV[3]), tonumber(ARGV[4])
local pairs_given = tonumber(ARGV[8])
local from = 11 + max(0, pairs_given)
local names
if ARGV[9] == '0' then
  names = #ARGV == from and {ARGV[from]} or without_repeats(ARGV, from)
else
  if ARGV[9] == '1' then
    names = without_repeats(ARGV, from + 1)
    remember_set(ARGV[from], names)
    names = live_ones(names)
  else
    names = live_of_set(ARGV[from])
    if not names then return {'?', ''} end
  end
  table.sort(names, before)
end
load_queues(names, true)

local plan = plans.of(ARGV[10])

-- What is due, in all queues together one batch of each kind: a long list in one leaves its share to the others.
local more, crowded, due, left = false, false, {}, BATCH
for i = 1, #names do
  local q = Q[names[i]]
  if q.due and q.due <= now then due[#due + 1] = q end
end
for i = 1, #due do
  local q, most = due[i], math.ceil(left / (#due - i + 1))
  if left == 0 then
    more = true
    break
  end
  local promoted, more_due = promote(q, most)
  local reaped, more_ended = reap(q, most)
  local expired, more_late = expire(q, most)
  look_again(q)
  left = max(0, left - max(promoted, reaped, expired))
  more = more or more_due or more_ended or reaped >= most
  crowded = crowded or more_late
end
for i = 1, #names do look_for_missed(Q[names[i]]) end
if crowded then
  commit()
  return {'1', ''}
end
left = max(3, floor(left / 4)) -- some return even while very much falls due
for i = 1, #names do
  left = left - return_parked(Q[names[i]], left)
end
more = more or left == 0

local candidates = {}
local page = #names == 1 and n or min(n, math.ceil(n / #names) + 1)
for i = 1, #names do
  local q = Q[names[i]]
  sync(q)
  if not q.paused then candidates[#candidates + 1] = candidate(q, runs(q, pairs_given, ARGV), page) end
end

if ARGV[10] == 'peek' then return peek(names, candidates, n, more) end
choose(candidates, n, plan)
for i = 1, plan and #candidates or 0 do
  candidates[i].served = plans.served(plan, candidates[i].q.served, candidates[i].taken)
end
deliver(ARGV[5], ARGV[6], lease)
for i = 1, #candidates do
  write_back(candidates[i])
  look_for_missed(candidates[i].q)
end
local next_due = #picks == 0 and when_next(names) or ''

if ARGV[9] ~= '0' then
  for i = 1, #names do
    sync(Q[names[i]])
    retire(Q[names[i]])
  end
end

local out = {(more or parked_now > PARK) and '1' or '0', next_due}
for i = 1, #candidates do
  local c = candidates[i]
  if c.taken > 0 then
    out[#out + 1], out[#out + 2], out[#out + 3] = c.q.name, I(c.q.lease or lease), c.aging and '1' or '0'
  end
end
out[#out + 1] = ''
for i = 1, #picks do
  out[#out + 1] = record(picks[i])
  out[#out + 1] = picks[i].id
end
commit()
return out
