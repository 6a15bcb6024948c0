-- A queue: its settings (conf), and what it remembers (state). Twin of transport/memory/records.py, QueueRecord.
--
-- conf:<q>   "paused,weight,aging,max_running,max_queued,hold,lease,count,cost,burst\n<JSON>"; empty: not set
-- state:<q>  "v,j,tag,head,flows,limited,live,due,specs": virtual time, the unpartitioned flow's tag and whether it has a
--            head, how many partitions, whether it has seen a limit, whether it is in `live`, a lower bound of when something
--            falls due, and for each spec whether it has a limit ("0101"). It always exists for a
--            queue that was used, so it is what makes a queue exist.
-- served:<q> "served,level,level_at": service and the rate's bucket. Apart, because every claim writes it and only claims
--            read it: so without Lua claims do not spoil the transactions of others.
-- live       SET of the queues that have something in line, owed or due. It may have more: only a claim from many queues
--            looks at it, and takes out what it finds empty.
-- set:<digest>  SET of the queues that somebody claims from again and again, if they are many: sent once, then called by the
--            digest of their names. It says nothing else, so it may go at any time, and goes after a day.
-- A spec is what a claim must be able to run: handler, version, with or without a limit. Numbered in specs:<q>.

-- @include base

local NONE = {} -- stays empty
local PB = 2 ^ 49 -- one priority in the score of a line or a turn: (9 - priority) * PB + seq or tag
local U = 2 ^ 24 -- one turn (policy/turns.py)
local function join(j, v, tag) -- a flow joins the turns: their J and its tag
  j = max(j + 1, v)
  return j, max(tag, j)
end
local function take_turn(v, tag, weight) -- a flow takes its turn: their V and its tag
  v = max(v, tag)
  return v, v + floor(U / weight + 0.5)
end
local seq, seq0 -- the last number given to a task, and what it was before
local Q, QN -- queues by name, and in order of loading
local load_queues, take_service, settings_of, state_of
do

local last_queue
fresh[#fresh + 1] = function() Q, QN, last_queue, seq, seq0 = {}, {}, nil, nil, nil end

local function next_queue_number()
  if not last_queue then
    local newest = redis.call('ZRANGE', P .. 'queues', -1, -1, 'WITHSCORES')
    last_queue = tonumber(newest[2] or '0')
  end
  last_queue = last_queue + 1
  return last_queue
end

-- Settings and states change seldom: they are taken apart once for many calls.
local meta_of, remember_meta = kept(200)
local known_state, remember_state = kept(200)

local function parse_conf(text)
  local paused, weight, aging, running, queued, hold, lease, count, cost, burst =
    match(text, '^(%d),(%d*),(%d*),(%d*),(%d*),(%d),(%d*),(%d*),(%d*),(%d*)\n')
  return {
    conf = text, paused = paused == '1', weight = tonumber(weight) or 1, aging = tonumber(aging) or 0, max_running = tonumber(running),
    max_queued = tonumber(queued), hold = hold == '1', lease = tonumber(lease), count = tonumber(count),
    cost = tonumber(cost), burst = tonumber(burst)
  }
end

-- What it does not have of its own a queue looks up in its settings; so they need not be copied for each call.
function settings_of(text)
  local meta = meta_of(text)
  return meta or remember_meta(text, {__index = text == '' and {weight = 1, aging = 0} or parse_conf(text)})
end

local function parse_state(text)
  local v, j, tag, plive, flows, limited, live, due, specs =
    match(text, '^(%d+),(%d+),(%d+),(%d),(%d+),(%d),(%d),(%d*),([01]*)$')
  return remember_state(text, {
    v = tonumber(v), j = tonumber(j), tag = tonumber(tag), plive = plive == '1', flows = tonumber(flows),
    limited = limited == '1', live = live == '1', due = tonumber(due), specs = specs
  })
end

function state_of(text) return known_state(text) or parse_state(text) end

local NO_STATE = {v = 0, j = 0, tag = 0, plive = false, flows = 0, specs = ''}

local function new_queue(name, conf, state)
  local s = state and state_of(state) or NO_STATE
  local q = {
    name = name, v = s.v, j = s.j, flows = s.flows, limited = s.limited, live = s.live, due = s.due, specs = s.specs,
    plain = {code = '', plain = true, weight = 1, tag = s.tag, live = s.plive, exists = true},
    touched = NONE, stopped = NONE, cnt = {}, sets = {}, started = 0
  }
  setmetatable(q, settings_of(conf or ''))
  if not state then q.born, q.dirty = home or next_queue_number(), true end
  return q
end

-- What a queue has served, and its bucket.
function take_service(q, text)
  q.served = 0
  if text then
    local served, level, since = match(text, '^([^,]*),(%d*),(%d*)$')
    q.served, q.level, q.level_at = tonumber(served), tonumber(level), tonumber(since)
  end
end

-- service: read what they have served, too; number: the last number given to a task (next_seq).
function load_queues(names, service, number)
  local keys, missing, each = {}, {}, service and 3 or 2
  for i = 1, #names do
    local name = names[i]
    if not Q[name] then
      local n = #keys
      keys[n + 1], keys[n + 2], missing[#missing + 1] = K('conf', name), K('state', name), name
      if service then keys[n + 3] = K('served', name) end
      Q[name] = true
    end
  end
  for from = 1, #missing, 1200 do
    local n = min(1200, #missing - from + 1)
    local got
    if number and from == 1 and #missing <= 1200 then
      keys[each * n + 1] = H .. 'seq'
      got = redis.call('MGET', unpack(keys))
      seq0 = tonumber(got[each * n + 1] or '0')
      seq = seq0
    else
      got = redis.call('MGET', unpack(keys, each * (from - 1) + 1, each * (from - 1 + n)))
    end
    for i = 1, n do
      local name, at = missing[from + i - 1], each * (i - 1)
      local q = new_queue(name, got[at + 1], got[at + 2])
      if service then take_service(q, got[at + 3]) end
      Q[name], QN[#QN + 1] = q, q
    end
  end
end

end

local function queue(name)
  if not Q[name] then load_queues({name}) end
  return Q[name]
end

local function state_text(q)
  return concat({
    I(q.v), I(q.j), I(q.plain.tag), q.plain.live and '1' or '0', I(q.flows), q.limited and '1' or '0',
    q.live and '1' or '0', q.due and I(q.due) or '',
    q.specs
  }, ',')
end

local function service_text(q)
  return real(q.served) .. ',' .. (q.level and I(q.level) or '') .. ',' .. (q.level_at and I(q.level_at) or '')
end

-- One of a queue's sets.
local function zq(q, what)
  local z = q.sets[what]
  if not z then
    z = zset(K(what, q.name))
    q.sets[what] = z
  end
  return z
end

local function count(q, field, by) q.cnt[field] = (q.cnt[field] or 0) + by end

-- There is something to look at in it.
local function enliven(q)
  if not q.live then
    q.live, q.dirty = true, true
    if not home then write('SADD', P .. 'live', q.name) end
  end
end

-- Something of the queue falls due then. The bound may be early, never late.
local function falls_due(q, at)
  if not q.due or at < q.due then q.due, q.dirty = at, true end
  enliven(q)
end

-- The names of those queues that have something to look at.
local function live_ones(names)
  local known = redis.call('SMISMEMBER', P .. 'live', unpack(names))
  local found = {}
  for i = 1, #names do
    if known[i] == 1 then found[#found + 1] = names[i] end
  end
  return found
end

local DUE = {'delayed', 'retries', 'blocks', 'leases', 'expiring'}
local function look_again(q)
  local at
  for i = 1, 5 do
    local _, s = zfirst(zq(q, DUE[i]))
    if s and (not at or s < at) then at = s end
  end
  if at ~= q.due then q.due, q.dirty = at, true end
end

-- ── specs and lanes ──

local function spec_number(q, name)
  local number = redis.call('HGET', K('specs', q.name), name)
  if number then return tonumber(number) end
  q.newspecs = q.newspecs or {}
  if not q.newspecs[name] then
    q.specs, q.dirty = q.specs .. sub(name, -1), true
    q.newspecs[name] = #q.specs
    write('HSET', K('specs', q.name), name, I(#q.specs))
  end
  return q.newspecs[name]
end

-- The specs by their numbers.
local function spec_names(q)
  local names, known = {}, redis.call('HGETALL', K('specs', q.name))
  for i = 1, #known, 2 do names[tonumber(known[i + 1])] = known[i] end
  for name, number in pairs(q.newspecs or {}) do names[number] = name end
  return names
end

local function keyed(q, spec) return byte(q.specs, spec) == 49 end

local function of_specs(q, what, runs)
  local sets = {}
  for spec = 1, #q.specs do
    if not runs or runs[spec] then sets[#sets + 1] = zq(q, what .. ':' .. spec) end
  end
  return sets
end

local function lane(q, spec) return zq(q, 'line:' .. spec) end

-- ── gates ──

local function running(q)
  if not q.leased then q.leased = redis.call('ZCARD', K('leases', q.name)) end
  return q.leased + q.started
end

local function level_at(q)
  local full = q.cost * q.burst
  if not q.level then return full end
  return min(full, q.level + max(0, now - q.level_at) * q.count)
end

-- How many of its tasks may start now; nil: any number.
local function room(q)
  local most
  if q.max_running then most = max(0, q.max_running - running(q)) end
  if q.count then
    local tokens = floor(level_at(q) / q.cost)
    if not most or tokens < most then most = tokens end
  end
  return most
end

local function count_starts(q, n)
  if q.count and n > 0 then
    q.level, q.level_at, q.served_on = level_at(q) - n * q.cost, now, true
  end
end

local function next_start_at(q)
  if not q.count then return nil end
  local missing = q.cost - level_at(q)
  if missing > 0 then return now - floor(-missing / q.count) end
end
