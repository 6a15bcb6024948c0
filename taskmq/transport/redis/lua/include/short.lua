-- The short way: what nearly every call is about – plain tasks – from its reads to its writes in one go, each record made
-- from another as text. The long way makes tables of everything it reads and of everything it will change, and throws them
-- away; for one task that costs more than the work itself.
--
-- It is for queues that have nothing but a line – no partition, limit or rate, nothing due – and for tasks of which nothing
-- else is written down: no expiry, no retry. What meets anything else answers nil before its first write, and the call goes
-- the long way (publish.lua, claim.lua, ending.lua), which says the same; random programs hold both to it.
--
-- A table with nil in its constructor is as large as it will be for one task: to grow costs more than all else done to it.

-- @include commit
-- @include claim

local ack_shortly
do

local MOST = 1000 -- tasks

-- What a queue's keys are called: kept for many calls, as long as they are of one prefix.
local names_of, remember_names, names_for
local function keys_of(q)
  if names_for ~= P then
    names_of, remember_names = kept(200)
    names_for = P
  end
  return names_of(q) or remember_names(q, {
    conf = K('conf', q), state = K('state', q), served = K('served', q), specs = K('specs', q), counts = K('counts', q),
    leases = K('leases', q), done = K('done', q), wake = not home and K('wake', q), seq = H .. 'seq', task = H .. 't:',
    lines = {}
  })
end

local function line_of(k, q, spec)
  local key = k.lines[spec] or K('line:' .. I(spec), q)
  k.lines[spec] = key
  return key
end

-- A queue's settings and state, if it has nothing but a line and nothing is due.
local function at_rest(conf, state)
  if not state then return nil end
  local c, s = settings_of(conf or '').__index, state_of(state)
  if s.flows > 0 or s.limited or not s.live or (s.due and s.due <= now) then return nil end
  return c, s
end

-- How many of n who wait for work can be told: as many as the list of tokens has room for.
local function to_wake(k, q, n)
  if not home then return min(n, WAKES - redis.call('LLEN', k.wake)) end
  if redis.call('EXISTS', K('waiting', q)) == 1 then woken = min(n, WAKES) end
  return 0
end

local function wake_up(k, n)
  if n == 1 then
    redis.call('RPUSH', k.wake, '1')
  elseif n > 1 then
    local tokens = {'RPUSH', k.wake}
    for i = 1, n do tokens[2 + i] = '1' end
    redis.call(unpack(tokens))
  end
end

local function count_in(k, counts)
  for field, by in pairs(counts) do redis.call('HINCRBY', k.counts, field, I(by)) end
end

-- New tasks of one spec.
function short.publish(ARGV)
  local words = #ARGV
  if ARGV[3] ~= '1' or ARGV[5] ~= '1' or words > 7 + 3 * MOST then return nil end
  local q = ARGV[4]
  local k = keys_of(q)
  local got = redis.call('MGET', k.conf, k.state, k.seq)
  local c, s = at_rest(got[1], got[2])
  if not s or c.max_queued then return nil end
  local spec = redis.call('HGET', k.specs, ARGV[7])
  if not spec then return nil end

  local seq, aging, n = tonumber(got[3] or '0'), c.aging, (words - 7) / 3
  local number = tonumber(spec)
  local specx, behind, counts, seen = two(number), ',0,0,,,0,,\nc' .. I(now), {}, n > 1 and {}
  local ids, sets, line = {nil}, {'MSET', k.seq, I(seq + n), nil, nil}, {'ZADD', line_of(k, q, number), nil, nil}
  local last, prio, field, base
  for at = 8, words, 3 do
    local first, id = ARGV[at], ARGV[at + 1]
    if first ~= last then
      if #first ~= 3 then return nil end -- there is more to it
      last, prio = first, sub(first, 3)
      field = 'r' .. prio
      counts[field] = counts[field] or 0
      base = aging > 0 and now - prio * aging or (9 - prio) * PB
    end
    if seen then
      if seen[id] then return nil end
      seen[id] = true
    end
    seq = seq + 1
    local key, spot, i = k.task .. id, prio .. eight(seq) .. specx, #ids + 1
    ids[i] = key
    sets[2 * i + 2], sets[2 * i + 3] = key, 'W' .. spot .. behind .. ARGV[at + 2]
    line[2 * i + 1], line[2 * i + 2] = I(aging > 0 and base or base + seq), spot .. id
    counts[field] = counts[field] + 1
  end
  if redis.call('EXISTS', unpack(ids)) > 0 then return nil end
  local waiters = to_wake(k, q, n)

  redis.call(unpack(sets))
  redis.call(unpack(line))
  redis.call('HINCRBY', k.counts, 'h' .. spec, I(n))
  count_in(k, counts)
  wake_up(k, waiters)
  return {}
end

do -- reserve

-- of a waiting task: spot (priority, seq, spec), epoch, attempts, where line 2 begins
local WAITING = '^W(...........),(%d+),(%d+),,[^,]*,[01],[^\n]*()\nc[^\ner]*\n[^\n]*\n\n'

-- The first n members behind the first `from` of a queue's line.
local function members_of(k, q, specs, from, n)
  if specs == 1 then return redis.call('ZRANGE', line_of(k, q, 1), I(from), I(from + n - 1)) end
  local lines, at, members = {}, {}, {}
  for spec = 1, specs do
    lines[spec], at[spec] = redis.call('ZRANGE', line_of(k, q, spec), '0', I(from + n - 1), 'WITHSCORES'), 1
  end
  for i = 1, from + n do
    local best, bm, bs
    for spec = 1, specs do
      local m = lines[spec][at[spec]]
      if m then
        local score = tonumber(lines[spec][at[spec] + 1])
        if not best or stands_before(score, m, bs, bm) then best, bm, bs = spec, m, score end
      end
    end
    if not best then break end
    at[best] = at[best] + 2
    if i > from then members[#members + 1] = bm end
  end
  return members
end

-- The next member of a queue's line becomes its head; false: there is none, or it has no room for more.
local function advance(c, page)
  if c.room == 0 then return false end
  c.at = c.at + 1
  if c.at > #c.members then
    if c.done then return false end
    c.members, c.read, c.at = members_of(c.k, c.name, #c.state.specs, c.read, page), c.read + page, 1
    c.done = #c.members < page
    if not c.members[1] then return false end
  end
  c.head = c.members[c.at]
  c.band = c.conf.aging > 0 and 0 or byte(c.head) - 48
  return true
end

-- These queues as candidates of next_queue, those without a head left out; nil: one of them has more than a line.
local function lines_of(names, page)
  local k = keys_of(names[1])
  local keys, candidates = {'MGET', k.conf, k.state, k.served}, {nil}
  for i = 2, #names do
    k = keys_of(names[i])
    keys[3 * i - 1], keys[3 * i], keys[3 * i + 1] = k.conf, k.state, k.served
  end
  local got = redis.call(unpack(keys))
  for i = 1, #names do
    local c, s = at_rest(got[3 * i - 2], got[3 * i - 1])
    if not s or c.count then return nil end
    if not c.paused then
      local served, rest = 0, ',,' -- rest: its rate's
      if got[3 * i] then
        served, rest = match(got[3 * i], '^([^,]*)(.*)$')
        served = tonumber(served)
      end
      k = keys_of(names[i])
      local candidate = {
        name = names[i], k = k, conf = c, state = s, weight = c.weight, served = served, had = served, rest = rest,
        members = NONE, at = 0, read = 0, taken = 0, band = 0, head = '', gone = NONE,
        room = c.max_running and max(0, c.max_running - redis.call('ZCARD', k.leases))
      }
      if advance(candidate, page) then candidates[#candidates + 1] = candidate end
    end
  end
  return candidates
end

-- The next n of them by the claim rule, member and candidate one after the other; and the candidates that gave.
local function take(candidates, n, page)
  local picks, givers = {nil, nil}, {nil}
  for i = 1, n do
    local c = candidates[1]
    if not c then break end
    if candidates[2] then c = next_queue(candidates) else c.served = c.served + 1 end
    if c.taken == 0 then givers[#givers + 1] = c end
    picks[2 * i - 1], picks[2 * i], c.taken = c.head, c, c.taken + 1
    if c.room then c.room = c.room - 1 end
    if i < n and not advance(c, page) then
      for j = 1, #candidates do
        if candidates[j] == c then
          table.remove(candidates, j)
          break
        end
      end
    end
  end
  return picks, givers
end

local function distinct(ARGV, from)
  if not ARGV[from + 1] then return {ARGV[from]} end
  local names, seen = {}, {}
  for i = from, #ARGV do
    local name = ARGV[i]
    if seen[name] then return nil end
    names[i - from + 1], seen[name] = name, true
  end
  return names
end

-- The next tasks of these queues, or, of a queue in a cluster, as many as the plan says.
function short.reserve(ARGV)
  if ARGV[7] ~= '1' or ARGV[8] ~= '-1' or ARGV[9] ~= '0' or ARGV[10] == 'peek' then return nil end
  local plan, names = plan_of(ARGV[10]), distinct(ARGV, 11)
  local n = plan and plan.heads or tonumber(ARGV[3])
  if n < 1 or n > MOST or not names or not names[1] then return nil end
  local page = names[2] and min(n, floor(n / #names) + 2) or n
  local candidates = lines_of(names, page)
  if not candidates or not candidates[1] then return nil end
  local picks, givers = take(candidates, n, page)
  n = #picks / 2
  local keys = {'MGET', nil}
  for i = 1, n do keys[i + 1] = H .. 't:' .. sub(picks[2 * i - 1], 12) end
  local records = redis.call(unpack(keys))

  local worker, batch, out = ',0,,' .. ARGV[5], ARGV[6] .. '00000', {'0', '', nil, nil, nil, nil, nil, nil}
  for i = 1, #givers do
    local c = givers[i]
    local lease = c.conf.lease or tonumber(ARGV[4])
    c.gone = {due = now + lease, till = I(now + lease), leases = {'ZADD', c.k.leases, nil, nil}, lines = NONE, counts = NONE}
    out[3 * i], out[3 * i + 1], out[3 * i + 2] = c.name, I(lease), c.conf.aging > 0 and '1' or '0'
  end
  local at = 3 + 3 * #givers
  out[at] = ''
  local sets = {'MSET', nil, nil, nil, nil, nil, nil}
  for i = 1, n do
    local m, c, rec = picks[2 * i - 1], picks[2 * i], records[i]
    local spot, epoch, attempts, behind
    if rec then spot, epoch, attempts, behind = match(rec, WAITING) end
    if not spot then return nil end
    local gone, hand, field, spec = c.gone, batch .. format('%05d', i), 'r' .. sub(m, 1, 1), sub(m, 10, 11)
    rec = 'R' .. spot .. ',' .. epoch + 1 .. ',' .. attempts .. ',' .. gone.till .. ',' .. hand .. worker .. sub(rec, behind)
    out[at + 1], out[at + 2] = rec, sub(m, 12)
    at = at + 2
    sets[2 * i], sets[2 * i + 1] = keys[i + 1], rec
    local leases, line = gone.leases, gone.lines[spec]
    leases[#leases + 1], leases[#leases + 2] = gone.till, hand .. ':' .. sub(m, 2, 9) .. sub(m, 1, 1) .. sub(m, 10)
    if line then
      line[#line + 1] = m
    else
      line = {'ZREM', line_of(c.k, c.name, number(spec)), m}
      if gone.lines == NONE then gone.lines = {[spec] = line} else gone.lines[spec] = line end
    end
    if gone.counts == NONE then
      gone.counts = {[field] = -1}
    else
      gone.counts[field] = (gone.counts[field] or 0) - 1
    end
  end
  at = 2 * n + 2
  for i = 1, #givers do
    local c, s = givers[i], givers[i].state
    sets[at], sets[at + 1] = c.k.served, real(plan and served_by(plan, c.had, c.taken) or c.served) .. c.rest
    at = at + 2
    if not s.due or c.gone.due < s.due then
      sets[at], sets[at + 1] = c.k.state, s.before_due .. c.gone.till .. ',' .. s.specs
      at = at + 2
    end
  end

  redis.call(unpack(sets))
  for i = 1, #givers do
    local gone = givers[i].gone
    for _, line in pairs(gone.lines) do redis.call(unpack(line)) end
    redis.call(unpack(gone.leases))
    count_in(givers[i].k, gone.counts)
  end
  return out
end

end

do -- settle

-- of a running one: priority, seq, spec, epoch, attempts, hand, flags, started_at, where the worker begins, retention, where
-- line 2 ends, line 3, where lines 5 and 6 begin
local RUNNING = '^R(.)(........)(..),(%d+),(%d+),%d+,([^,]*),(%d,)(%d*)(),[^\n]*\nc[^\nfkzt]*t?(%d*)()\n([^\n]*)\n[^\n]*\n()[^\n]*()'

-- A running task's record after its success, if nothing but its lease depends on it; else nil. outcome: "" or its result.
-- Answers its lease's member without its id, its spec, when it will be deleted, and its queue, too.
local till_of, till_for, till -- when what ends now and is kept so long will be deleted
local function ended(rec, epoch, ago, outcome)
  local prio, seqx, specx, had, attempts, hand, flags, started_at, behind, retention, cold_ends, texts, fifth, body =
    match(rec, RUNNING)
  if had ~= epoch or retention == '0' then return nil end
  local x = texts_in(texts)
  if x.p or x.l then return nil end
  if till_of ~= now or till_for ~= retention then
    till_of, till_for, till = now, retention, I(now + (tonumber(retention) or DAY))
  end
  return 'S' .. prio .. seqx .. specx .. ',' .. epoch .. ',' .. attempts + 1 .. ',,' .. hand .. ',' .. flags
    .. (ago == '' and started_at or I(now - ago)) .. sub(rec, behind, cold_ends - 1) .. 'f' .. I(now) .. 'z' .. till
    .. sub(rec, cold_ends, fifth - 1) .. outcome .. sub(rec, body), hand .. ':' .. seqx .. prio .. specx, specx, till, x.q
end

local function result_of(kind, text) return kind == 'a' and '"result":' .. text or '' end

-- Successes in one queue.
function short.settle(ARGV)
  local words = #ARGV
  if ARGV[3] ~= '1' or words > 4 + 3 * MOST then return nil end
  local q = ARGV[4]
  local k = keys_of(q)
  local at, n, keys, ats, seen = 5, 0, {'MGET', k.conf, k.state, nil}, {nil}, words > 7 and {}
  while at <= words do
    local kind, id = byte(ARGV[at]), ARGV[at + 1]
    if kind ~= 65 and kind ~= 97 then return nil end -- A, a
    if seen then
      if seen[id] then return nil end
      seen[id] = true
    end
    n = n + 1
    ats[n], keys[n + 3] = at, k.task .. id
    at = at + (kind == 65 and 2 or 3)
  end
  local got = redis.call(unpack(keys))
  local c, s = at_rest(got[1], got[2])
  if not s then return nil end

  local sets, leases, done, counts = {'MSET', nil, nil}, {'ZREM', k.leases, nil}, {'ZADD', k.done, nil, nil}, {}
  for i = 1, n do
    local rec, first = got[i + 2], ARGV[ats[i]]
    local kind, epoch, ago = match(first, '^(.),1,(%d+),(%d*)$')
    if not rec then return nil end
    local text, hand, specx, till, of = ended(rec, epoch, ago, result_of(kind, ARGV[ats[i] + 2]))
    if of ~= q then return nil end
    local id = ARGV[ats[i] + 1]
    sets[2 * i], sets[2 * i + 1] = keys[i + 3], text
    leases[i + 2] = hand .. id
    done[2 * i + 1], done[2 * i + 2] = till, id
    counts[specx] = (counts[specx] or 0) - 1
  end
  local waiters = c.max_running and to_wake(k, q, n) or 0

  redis.call(unpack(sets))
  redis.call(unpack(leases))
  redis.call(unpack(done))
  for specx, by in pairs(counts) do redis.call('HINCRBY', k.counts, 'h' .. number(specx), I(by)) end
  wake_up(k, waiters)
  return string.rep('1', n)
end

-- On the long way: ends a task with success, as text. True: that was done.
function ack_shortly(id, epoch, ago, outcome)
  local rec = T[id] == nil and raw[id]
  if not rec then return false end
  local text, hand, specx, till, name = ended(rec, epoch, ago, outcome)
  if not text then return false end
  local q = queue(name)
  raw[id] = text
  local n = #sets
  sets[n + 1], sets[n + 2] = H .. 't:' .. id, text
  zrem(zq(q, 'leases'), hand .. id)
  zadd(zq(q, 'done'), id, tonumber(till))
  count(q, 'h' .. number(specx), -1)
  q.started = q.started - 1
  if q.max_running then wake(q.name, 1) end
  place(q, q.plain)
  return true
end

end

end
