-- The short way: what nearly every call is about – plain tasks of one queue – from its reads to its writes in one go, each
-- record made from another as text. The long way makes tables of everything it reads and of everything it will change, and
-- throws them away; for one task that costs more than the work itself.
--
-- It is for a queue that has nothing but a line – no partition, limit or rate, nothing due – and for tasks of which nothing
-- else is written down: no expiry, no retry. What meets anything else answers nil before its first write, and the call goes
-- the long way (publish.lua, claim.lua, ending.lua), which says the same; random programs hold both to it.

-- @include commit

local ack_shortly
do

-- of a waiting task: spot (priority, seq, spec), epoch, attempts, where line 2 begins
local WAITING = '^W(...........),(%d+),(%d+),,[^,]*,[01],[^\n]*()\nc[^\ner]*\n[^\n]*\n\n'
-- of a running one: priority, seq, spec, epoch, attempts, hand, flags, started_at, where the worker begins, retention, where
-- line 2 ends, line 3, where lines 5 and 6 begin
local RUNNING = '^R(.)(........)(..),(%d+),(%d+),%d+,([^,]*),(%d,)(%d*)(),[^\n]*\nc[^\nfkzt]*t?(%d*)()\n([^\n]*)\n[^\n]*\n()[^\n]*()'
local MOST = 1000 -- tasks

-- What a queue's keys are called: kept for many calls, as long as they are of one prefix.
local names_of, remember_names, names_for
local function names(q)
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
  local k = names(q)
  local got = redis.call('MGET', k.conf, k.state, k.seq)
  local c, s = at_rest(got[1], got[2])
  if not s or c.max_queued then return nil end
  local spec = redis.call('HGET', k.specs, ARGV[7])
  if not spec then return nil end

  local seq, aging, n = tonumber(got[3] or '0'), c.aging, (words - 7) / 3
  local specx, behind, counts = two(tonumber(spec)), ',0,0,,,0,,\nc' .. I(now), {['h' .. spec] = n}
  local ids, sets, line, seen = {}, {'MSET', k.seq, I(seq + n)}, {'ZADD', line_of(k, q, tonumber(spec))}, n > 1 and {}
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
  count_in(k, counts)
  wake_up(k, waiters)
  return {}
end

-- The first n members of a line of unpartitioned tasks.
local function first_members(k, q, specs, n)
  if specs == 1 then return redis.call('ZRANGE', line_of(k, q, 1), '0', I(n - 1)) end
  local lines, at, members = {}, {}, {}
  for spec = 1, specs do
    lines[spec], at[spec] = redis.call('ZRANGE', line_of(k, q, spec), '0', I(n - 1), 'WITHSCORES'), 1
  end
  while #members < n do
    local best, bm, bs
    for spec = 1, specs do
      local m = lines[spec][at[spec]]
      if m then
        local score = tonumber(lines[spec][at[spec] + 1])
        if not best or stands_before(score, m, bs, bm) then best, bm, bs = spec, m, score end
      end
    end
    if not best then break end
    members[#members + 1], at[best] = bm, at[best] + 2
  end
  return members
end

-- What a queue has served after so many more (the rest of the text is its rate's).
local function served_text(text, n, plan)
  local served, rest = 0, ',,'
  if text then
    served, rest = match(text, '^([^,]*)(.*)$')
    served = tonumber(served)
  end
  return real(plan and served_by(plan, served, n) or served + n) .. rest
end

-- The next tasks of a queue of its own, or, in a cluster, as many as the plan says.
function short.reserve(ARGV)
  local q, plan = ARGV[11], ARGV[10]
  if ARGV[12] or not q or ARGV[7] ~= '1' or ARGV[8] ~= '-1' or ARGV[9] ~= '0' or plan == 'peek' then return nil end
  plan = plan ~= '' and plan_of(plan)
  local n = plan and plan.heads or tonumber(ARGV[3])
  local k = names(q)
  local got = redis.call('MGET', k.conf, k.state, k.served)
  local c, s = at_rest(got[1], got[2])
  if not s or c.paused or c.count or n > MOST then return nil end
  if c.max_running then n = min(n, c.max_running - redis.call('ZCARD', k.leases)) end
  if n <= 0 then return nil end
  local members, keys = first_members(k, q, #s.specs, n), {'MGET'}
  n = #members
  if n == 0 then return nil end
  for i = 1, n do keys[i + 1] = k.task .. sub(members[i], 12) end
  local records = redis.call(unpack(keys))

  local lease, worker, batch = c.lease or tonumber(ARGV[4]), ARGV[5], ARGV[6] .. '00000'
  local due = now + lease
  local till, behind = I(due), ',0,,' .. worker
  local out, counts, gone = {'0', '', q, I(lease), c.aging > 0 and '1' or '0', ''}, {}, {}
  local sets, leases = {'MSET', k.served, served_text(got[3], n, plan)}, {'ZADD', k.leases}
  for i = 1, n do
    local m, rec = members[i], records[i]
    local spot, epoch, attempts, at
    if rec then spot, epoch, attempts, at = match(rec, WAITING) end
    if not spot then return nil end
    local hand, prio, spec = batch .. format('%05d', i), sub(m, 1, 1), sub(m, 10, 11)
    rec = 'R' .. spot .. ',' .. epoch + 1 .. ',' .. attempts .. ',' .. till .. ',' .. hand .. behind .. sub(rec, at)
    out[5 + 2 * i], out[6 + 2 * i] = rec, sub(m, 12)
    sets[2 + 2 * i], sets[3 + 2 * i] = keys[i + 1], rec
    leases[1 + 2 * i], leases[2 + 2 * i] = till, hand .. ':' .. sub(m, 2, 9) .. prio .. sub(m, 10)
    local from = gone[spec]
    if from then
      from[#from + 1] = m
    else
      gone[spec] = {'ZREM', line_of(k, q, number(spec)), m}
    end
    counts['r' .. prio] = (counts['r' .. prio] or 0) - 1
  end
  if not s.due or due < s.due then sets[#sets + 1], sets[#sets + 2] = k.state, s.before_due .. till .. ',' .. s.specs end

  redis.call(unpack(sets))
  for _, from in pairs(gone) do redis.call(unpack(from)) end
  redis.call(unpack(leases))
  count_in(k, counts)
  return out
end

-- A running task's record after its success, if nothing but its lease depends on it; else nil. outcome: "" or its result.
-- Answers its lease's member without its id, its spec, when it will be deleted, and its queue, too.
local till_of, tills -- when what ends now will be deleted, by retention
local function ended(rec, epoch, ago, outcome)
  local prio, seqx, specx, had, attempts, hand, flags, started_at, behind, retention, cold_ends, texts, fifth, body =
    match(rec, RUNNING)
  if had ~= epoch or retention == '0' then return nil end
  local x = texts_in(texts)
  if x.p or x.l then return nil end
  if till_of ~= now then till_of, tills = now, {} end
  local till = tills[retention]
  if not till then
    till = I(now + (tonumber(retention) or DAY))
    tills[retention] = till
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
  local k = names(q)
  local at, n, keys, ats, seen = 5, 0, {'MGET', k.conf, k.state}, {}, {}
  while at <= words do
    local kind, id = byte(ARGV[at]), ARGV[at + 1]
    if (kind ~= 65 and kind ~= 97) or seen[id] then return nil end -- A, a
    n = n + 1
    seen[id], ats[n], keys[n + 3] = true, at, k.task .. id
    at = at + (kind == 65 and 2 or 3)
  end
  local got = redis.call(unpack(keys))
  local c, s = at_rest(got[1], got[2])
  if not s then return nil end

  local sets, leases, done, counts = {'MSET'}, {'ZREM', k.leases}, {'ZADD', k.done}, {}
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
  return rep('1', n)
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
