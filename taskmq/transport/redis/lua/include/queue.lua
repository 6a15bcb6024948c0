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
-- A spec is what a claim must be able to run: handler, version, with or without a limit. Numbered in specs:<q>.

-- @include base

local PB = 2 ^ 49 -- one priority in the score of a line or a turn: (9 - priority) * PB + seq or tag
local U = 2 ^ 24 -- one turn (policy/turns.py)
local function after_turn(tag, weight) return tag + floor(U / weight + 0.5) end
local Q, QN -- queues by name, and in order of loading
local last_queue
fresh[#fresh + 1] = function() Q, QN, last_queue = {}, {}, nil end

local function next_queue_number()
  if not last_queue then
    local newest = redis.call('ZRANGE', P .. 'queues', -1, -1, 'WITHSCORES')
    last_queue = tonumber(newest[2] or '0')
  end
  last_queue = last_queue + 1
  return last_queue
end

local function load_queues(names)
  local keys, missing = {}, {}
  for i = 1, #names do
    local name = names[i]
    if not Q[name] then
      keys[#keys + 1], keys[#keys + 2], missing[#missing + 1] = K('conf', name), K('state', name), name
      Q[name] = {name = name}
    end
  end
  if #missing == 0 then return end
  local got = redis.call('MGET', unpack(keys))
  for i = 1, #missing do
    local q = Q[missing[i]]
    local conf, state = got[2 * i - 1], got[2 * i]
    QN[#QN + 1] = q
    q.weight, q.aging, q.fl, q.read_texts, q.touched, q.stopped, q.cnt, q.started = 1, 0, {}, {}, {}, {}, {}, 0
    if conf then
      local paused, weight, aging, running, queued, hold, lease, count, cost, burst =
        match(conf, '^(%d),(%d*),(%d*),(%d*),(%d*),(%d),(%d*),(%d*),(%d*),(%d*)\n')
      q.conf, q.paused, q.weight, q.aging = conf, paused == '1', tonumber(weight) or 1, tonumber(aging) or 0
      q.max_running, q.max_queued, q.hold, q.lease = tonumber(running), tonumber(queued), hold == '1', tonumber(lease)
      q.count, q.cost, q.burst = tonumber(count), tonumber(cost), tonumber(burst)
    end
    local tag, live = 0, false
    if state then
      local v, j, ptag, plive, flows, limited, live_too, due, specs =
        match(state, '^(%d+),(%d+),(%d+),(%d),(%d+),(%d),(%d),(%d*),([01]*)$')
      q.v, q.j, q.flows, q.limited = tonumber(v), tonumber(j), tonumber(flows), limited == '1'
      q.due, q.specs = tonumber(due), specs
      tag, live, q.live = tonumber(ptag), plive == '1', live_too == '1'
    else
      q.v, q.j, q.flows, q.specs = 0, 0, 0, ''
      q.born, q.dirty = home or next_queue_number(), true
    end
    q.plain = {code = '', plain = true, weight = 1, tag = tag, live = live, exists = true}
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

-- What queues have served, and their buckets; only scripts that ask for it read it.
local function load_service(names)
  local keys = {}
  for i = 1, #names do keys[i] = K('served', names[i]) end
  local got = #keys > 0 and redis.call('MGET', unpack(keys)) or keys
  for i = 1, #names do
    local q = Q[names[i]]
    q.served = 0
    if got[i] then
      local served, level, since = match(got[i], '^([^,]*),(%d*),(%d*)$')
      q.served, q.level, q.level_at = tonumber(served), tonumber(level), tonumber(since)
    end
  end
end

local function service_text(q)
  return format('%.17g', q.served) .. ',' .. (q.level and I(q.level) or '') .. ',' .. (q.level_at and I(q.level_at) or '')
end

local function zq(q, what) return zset(K(what, q.name)) end

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
    if not runs or runs[spec] then sets[#sets + 1] = zset(K(what .. ':' .. spec, q.name)) end
  end
  return sets
end

local function lane(q, spec) return zset(K('line:' .. spec, q.name)) end

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
