-- The short way: what nearly every call is about – plain tasks – from its reads to its writes in one go, each record made
-- from another as text. The long way makes tables of everything it reads and of everything it will change, and throws them
-- away; for one task that costs more than the work itself.
--
-- It is for queues at rest – no limit or rate, nothing due – whose partitions, if any, are simple (turns.lua), and for tasks of
-- which nothing else is written down: no expiry, no retry. What meets anything else answers nil before its first write, and
-- the call goes the long way (publish.lua, claim.lua, ending.lua), which says the same; random programs hold both to it.
--
-- A table with nil in its constructor is as large as it will be for one task: to grow costs more than all else done to it.

-- @include claim
-- @include turns

do

local MOST = 1000 -- tasks
local keys_of, set_of, at_rest, next_member = rest.keys_of, rest.set_of, rest.at_rest, rest.next_member
local state_after, wake_up, count_in = rest.state_after, rest.wake_up, rest.count_in

-- New tasks of one spec, all without a partition or all in partitions.
function short.publish(ARGV)
  local words, step = #ARGV, #(ARGV[8] or '') == 3 and 3 or 8
  if ARGV[3] ~= '1' or ARGV[5] ~= '1' or words > 7 + step * MOST then return nil end
  local q = ARGV[4]
  local k = keys_of(q)
  local got = redis.call('MGET', k.conf, k.state, k.seq)
  local c, s = at_rest(got[1], got[2])
  if not s or c.max_queued or (step == 8 and (s.flows == 0 or c.aging > 0)) then return nil end
  local spec = redis.call('HGET', k.specs, ARGV[7])
  if not spec then return nil end

  local seq, aging, n = tonumber(got[3] or '0'), c.aging, (words - 7) / step
  local spec_at = tonumber(spec)
  local specx, behind, counts, seen = two(spec_at), ',0,0,,,0,,\nc' .. I(now), {}, n > 1 and {}
  local ids, sets, line = {nil}, {'MSET', k.seq, I(seq + n), nil, nil}, {'ZADD', set_of(k, q, 'line', spec_at), nil, nil}
  local parts = step == 8 and turns.lines(q)
  local last, prio, field, base
  for at = 8, words, step do
    local first, id = ARGV[at], ARGV[at + 1]
    if first ~= last then
      if #first ~= (parts and 5 or 3) then return nil end -- there is more to it, or less
      last, prio = first, sub(first, 3, 3)
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
    local into = line
    if parts then
      into = turns.line_of(parts, ARGV, at)
      if not into then return nil end
    end
    local words_in = #into
    ids[i] = key
    sets[2 * i + 2], sets[2 * i + 3] = key, 'W' .. spot .. behind .. ARGV[at + 2]
    into[words_in + 1], into[words_in + 2] = I(aging > 0 and base or base + seq), spot .. id
    counts[field] = counts[field] + 1
  end
  if redis.call('EXISTS', unpack(ids)) > 0 then return nil end
  local waiters, state = n, nil
  if parts then
    if not turns.plan_publish(k, s, parts) then return nil end
    waiters = parts.wakes
    if parts.j ~= s.j or parts.flows ~= s.flows then state = state_after(s, s.v, parts.j, s.tag, s.plive, parts.flows, s.due) end
  elseif s.flows > 0 and not s.plive then -- the line takes turns with partitions from now on
    local j, tag = s.j, s.tag
    if aging == 0 then j, tag = join(j, s.v, tag) end
    waiters, state = n + 1, state_after(s, s.v, j, tag, true, s.flows, s.due)
  end
  if state then sets[2 * n + 4], sets[2 * n + 5] = k.state, state end
  waiters = to_wake(q, waiters)

  redis.call(unpack(sets))
  if parts then turns.write_publish(k, parts) else redis.call(unpack(line)) end
  redis.call('HINCRBY', k.counts, 'h' .. spec, I(n))
  count_in(k, counts)
  wake_up(k, waiters)
  return {}
end

do -- reserve

-- of a waiting task: spot (priority, seq, spec), epoch, attempts, where line 2 begins
local WAITING = '^W(...........),(%d+),(%d+),,[^,]*,[01],[^\n]*()\nc[^\ner]*\n[^\n]*\n\n'

-- The next member of a queue's line, or the next turn, becomes its head; false: there is none, or it has no room for more;
-- nil: this is not for the short way.
local function advance(c, page)
  if c.room == 0 then return false end
  if c.views then return turns.advance(c, page) end
  c.head = next_member(c, page)
  if not c.head then return false end
  c.band = c.conf.aging > 0 and 0 or byte(c.head) - 48
  return true
end

-- These queues as candidates of next_queue, those without a head left out; nil: one of them is not for the short way.
local function lines_of(names, page)
  local k = keys_of(names[1])
  local keys, candidates = {'MGET', k.conf, k.state, k.served}, {nil}
  for i = 2, #names do
    k = keys_of(names[i])
    keys[3 * i - 1], keys[3 * i], keys[3 * i + 1] = k.conf, k.state, k.served
  end
  local got = redis.call(unpack(keys))
  for i = 1, #names do
    local c, s = at_rest(got[3 * i - 2], got[3 * i - 1], true)
    if not s or c.count or (s.flows > 0 and c.aging > 0) then return nil end
    if s.live and not c.paused then
      local served, bucket = 0, ',,'
      if got[3 * i] then
        served, bucket = match(got[3 * i], '^([^,]*)(.*)$')
        served = tonumber(served)
      end
      k = keys_of(names[i])
      local candidate = {
        name = names[i], k = k, conf = c, state = s, weight = c.weight, served = served, had = served, bucket = bucket,
        members = NONE, at = 0, read = 0, done = false, taken = 0, band = 0, head = '', gone = NONE, v = s.v, tag = s.tag,
        plive = s.plive, views = false,
        room = c.max_running and max(0, c.max_running - redis.call('ZCARD', k.leases))
      }
      if s.flows > 0 then turns.begin(candidate) end
      local has_head = advance(candidate, page)
      if has_head == nil then return nil end
      if has_head then candidates[#candidates + 1] = candidate end
    end
  end
  return candidates
end

-- The next n of them by the claim rule: member and view one after the other, where a task has no partition the candidate
-- itself. The candidates that gave, and the views of ordered partitions.
local function take(candidates, n, page)
  local picks, givers, claimed = {nil, nil}, {nil}, NONE
  for i = 1, n do
    local c = candidates[1]
    if not c then break end
    if candidates[2] then c = next_queue(candidates) else c.served = c.served + 1 end
    if c.taken == 0 then givers[#givers + 1] = c end
    local v = c.views and turns.take(c)
    if v and v.ordered then
      if claimed == NONE then claimed = {} end
      claimed[#claimed + 1] = v
    end
    picks[2 * i - 1], picks[2 * i], c.taken = c.head, v or c, c.taken + 1
    if c.room then c.room = c.room - 1 end
    if i < n then
      local more = advance(c, page)
      if more == nil then return nil end
      if not more then
        for j = 1, #candidates do
          if candidates[j] == c then
            table.remove(candidates, j)
            break
          end
        end
      end
    end
  end
  return picks, givers, claimed
end

-- Fill up to n with runs: one more task of each claimed ordered partition, round after round.
local function follow(picks, claimed, n)
  while claimed[1] and #picks < 2 * n do
    local left = {}
    for i = 1, #claimed do
      if #picks == 2 * n then return end
      local v = claimed[i]
      local c, m, at = v.c, turns.follower(v, n), #picks
      if m then
        picks[at + 1], picks[at + 2], left[#left + 1] = m, v, v
        v.taken, c.taken, c.served = v.taken + 1, c.taken + 1, c.served + 1
        if c.room then c.room = c.room - 1 end
      end
    end
    claimed = left
  end
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
  if #ARGV > 10 + MOST then return nil end
  local plan, names = plans.of(ARGV[10]), distinct(ARGV, 11)
  local n = plan and plan.heads or tonumber(ARGV[3])
  if n < 1 or n + (plan and plan.followers or 0) > MOST or not names or not names[1] then return nil end
  local page = names[2] and min(n, floor(n / #names) + 2) or n
  local candidates = lines_of(names, page)
  if not candidates or not candidates[1] then return nil end
  local picks, givers, claimed = take(candidates, n, page)
  if not picks then return nil end
  if claimed[1] then follow(picks, claimed, plan and #picks / 2 + plan.followers or n) end
  for i = 1, #givers do
    if givers[i].views then turns.look_behind(givers[i]) end
  end
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
  local sets, groups = {'MSET', nil, nil, nil, nil, nil, nil}, 0
  for i = 1, n do
    local m, v, rec = picks[2 * i - 1], picks[2 * i], records[i]
    local c = v.c or v
    local spot, epoch, attempts, behind
    if rec then spot, epoch, attempts, behind = match(rec, WAITING) end
    if not spot then return nil end
    local gone, hand, field = c.gone, batch .. format('%05d', i), 'r' .. sub(m, 1, 1)
    if v ~= c and v.taken > 1 then -- a run
      if not v.group then
        groups = groups + 1
        v.group = format('%05d', groups)
      end
      hand = ARGV[6] .. v.group .. format('%05d', i)
    end
    rec = 'R' .. spot .. ',' .. epoch + 1 .. ',' .. attempts .. ',' .. gone.till .. ',' .. hand .. worker .. sub(rec, behind)
    out[at + 1], out[at + 2] = rec, sub(m, 12)
    at = at + 2
    sets[2 * i], sets[2 * i + 1] = keys[i + 1], rec
    local leases = gone.leases
    leases[#leases + 1], leases[#leases + 2] = gone.till, hand .. ':' .. sub(m, 2, 9) .. sub(m, 1, 1) .. sub(m, 10)
    if v == c then
      local spec = sub(m, 10, 11)
      local line = gone.lines[spec]
      if line then
        line[#line + 1] = m
      else
        line = {'ZREM', set_of(c.k, c.name, 'line', number(spec)), m}
        if gone.lines == NONE then gone.lines = {[spec] = line} else gone.lines[spec] = line end
      end
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
    sets[at], sets[at + 1] = c.k.served, real(plan and plans.served(plan, c.had, c.taken) or c.served) .. c.bucket
    at = at + 2
    local sooner = not s.due or c.gone.due < s.due
    if sooner or c.v ~= s.v or c.tag ~= s.tag or c.plive ~= s.plive then
      sets[at], sets[at + 1] = c.k.state, state_after(s, c.v, s.j, c.tag, c.plive, s.flows, sooner and c.gone.due or s.due)
      at = at + 2
    end
  end

  redis.call(unpack(sets))
  for i = 1, #givers do
    local gone = givers[i].gone
    for _, line in pairs(gone.lines) do redis.call(unpack(line)) end
    if givers[i].views and givers[i].views[1] then turns.write_claim(givers[i]) end
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

-- A running task's record after its success, if nothing but its lease and its partition depend on it; else nil. outcome: ""
-- or its result. Answers its lease's member without its id, its spec, when it will be deleted, and its texts, too.
local till_of, till_for, till -- when what ends now and is kept so long will be deleted
local function ended(rec, epoch, ago, outcome)
  local prio, seqx, specx, had, attempts, hand, flags, started_at, behind, retention, cold_ends, texts, fifth, body =
    match(rec, RUNNING)
  if had ~= epoch or retention == '0' then return nil end
  local x = texts_in(texts)
  if x.l then return nil end
  if till_of ~= now or till_for ~= retention then
    till_of, till_for, till = now, retention, I(now + (tonumber(retention) or DAY))
  end
  return 'S' .. prio .. seqx .. specx .. ',' .. epoch .. ',' .. attempts + 1 .. ',,' .. hand .. ',' .. flags
    .. (ago == '' and started_at or I(now - ago)) .. sub(rec, behind, cold_ends - 1) .. 'f' .. I(now) .. 'z' .. till
    .. sub(rec, cold_ends, fifth - 1) .. outcome .. sub(rec, body), hand .. ':' .. seqx .. prio .. specx, specx, till, x
end

local function result_of(kind, text) return kind == 'a' and '"result":' .. text or '' end

-- What ends in each queue of a call. codes, members: of those in partitions, and as they stood in line. The tables serve all
-- calls: to make one costs as much as an end itself.
local ends = {}
local function begin_ends(i, q)
  local e = ends[i]
  if not e then
    e = {
      q = '', k = false, c = false, s = false, n = 0, leases = NONE, done = NONE, counts = NONE, codes = NONE, members = NONE,
      left = false, waiters = 0
    }
    ends[i] = e
  end
  local k = keys_of(q)
  e.q, e.k, e.n, e.codes, e.left, e.waiters = q, k, 0, NONE, false, 0
  e.leases, e.done, e.counts = {'ZREM', k.leases, nil}, {'ZADD', k.done, nil, nil}, {}
  return k
end

-- Successes.
function short.settle(ARGV)
  local words, queues = #ARGV, tonumber(ARGV[3])
  if words > 4 + 3 * MOST then return nil end
  local keys, ats, seen = {'MGET', nil, nil, nil}, {nil}, words > 6 + queues and {}
  for i = 1, queues do
    local k = begin_ends(i, ARGV[3 + i])
    keys[2 * i], keys[2 * i + 1] = k.conf, k.state
  end
  local at, n, before_tasks = 4 + queues, 0, 2 * queues
  while at <= words do
    local kind, id = byte(ARGV[at]), ARGV[at + 1]
    if kind ~= 65 and kind ~= 97 then return nil end -- A, a
    if seen then
      if seen[id] then return nil end
      seen[id] = true
    end
    n = n + 1
    ats[n], keys[before_tasks + n + 1] = at, H .. 't:' .. id
    at = at + (kind == 65 and 2 or 3)
  end
  local got = redis.call(unpack(keys))
  for i = 1, queues do
    local e = ends[i]
    e.c, e.s = at_rest(got[2 * i - 1], got[2 * i])
    if not e.s then return nil end
  end

  local sets = {'MSET', nil, nil}
  for i = 1, n do
    local rec, first = got[before_tasks + i], ARGV[ats[i]]
    local kind, queue_at, epoch, ago = match(first, '^(.),(%d+),(%d+),(%d*)$')
    if not rec then return nil end
    local text, hand, specx, till, x = ended(rec, epoch, ago, result_of(kind, ARGV[ats[i] + 2]))
    local e = ends[tonumber(queue_at)]
    if not text or x.q ~= e.q then return nil end
    local id, leases, done, counts = ARGV[ats[i] + 1], e.leases, e.done, e.counts
    if x.p then
      if e.c.aging > 0 then return nil end
      if e.codes == NONE then e.codes, e.members = {}, {} end
      local codes, members = e.codes, e.members
      codes[#codes + 1], members[#members + 1] = x.p, sub(hand, -3, -3) .. sub(hand, -11, -4) .. specx .. id
    end
    sets[2 * i], sets[2 * i + 1] = keys[before_tasks + i + 1], text
    local m = e.n + 1
    e.n, leases[m + 2], done[2 * m + 1], done[2 * m + 2] = m, hand .. id, till, id
    counts[specx] = (counts[specx] or 0) - 1
  end
  for i = 1, queues do
    local e = ends[i]
    local s, waiters = e.s, e.c.max_running and e.n or 0
    if e.codes ~= NONE then
      local left = turns.plan_settle(e.k, e.q, s, e.codes, e.members)
      if not left then return nil end
      e.left, waiters = left, waiters + left.joined
      if left.j ~= s.j or left.flows ~= s.flows then
        local at_end = #sets
        sets[at_end + 1], sets[at_end + 2] = e.k.state, state_after(s, s.v, left.j, s.tag, s.plive, left.flows, s.due)
      end
    end
    if waiters > 0 then e.waiters = to_wake(e.q, waiters) end
  end

  redis.call(unpack(sets))
  for i = 1, queues do
    local e = ends[i]
    local k = e.k
    redis.call(unpack(e.leases))
    redis.call(unpack(e.done))
    for specx, by in pairs(e.counts) do redis.call('HINCRBY', k.counts, 'h' .. number(specx), I(by)) end
    if e.left then turns.write_settle(k, e.q, e.left) end
    wake_up(k, e.waiters)
  end
  return string.rep('1', n)
end

-- On the long way: ends a task with success, as text. True: that was done.
function rest.ack(id, epoch, ago, outcome)
  local rec = T[id] == nil and raw[id]
  if not rec then return false end
  local text, hand, specx, till, x = ended(rec, epoch, ago, outcome)
  if not text or x.p then return false end
  local q = queue(x.q)
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
