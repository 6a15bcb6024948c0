-- Publish: stores messages in order, all or none.
--
-- ARGV   3 number of queues, then their names
--        specs: number, then for each "queue's index" and "handler\0version\0keyed"
--        for each message: "spec's index,priority" or, when there is more to it, "spec's index,priority,x", then id and the
--        static part of its record (from the letters of line 2 on); and with x: "run_after;expires;deadline" (r: from now,
--        a: absolute), partition code, key, "digest;ttl", limit key
-- reply  a string for each message: "" when it was stored, the id of the first one when it is a duplicate;
--        {"!key", key, id, queue} when a key is taken by other content, {"!full", queue, max_queued, queued, more}:
--        nothing was stored
-- all or none  because all writes are made at the end; one script, so key check and insert are one step

-- @include commit

local at = 4 + ARGV[3]
load_queues({unpack(ARGV, 4, at - 1)})
local qs = {}
for i = 1, ARGV[3] do qs[i] = Q[ARGV[3 + i]] end
local specs = {}
for i = 1, ARGV[at] do specs[i] = {qs[tonumber(ARGV[at + 2 * i - 1])], ARGV[at + 2 * i]} end
at = at + 1 + 2 * #specs

-- ── which messages are new ──

local messages, ids, n = {}, {}, 0
while ARGV[at] do
  local spec, prio, more = match(ARGV[at], '^(%d+),(%d)(.*)$')
  n = n + 1
  ids[n] = ARGV[at + 1]
  messages[n] = {spec = specs[tonumber(spec)], prio = prio, id = ids[n], blob = ARGV[at + 2], at = more ~= '' and at + 3}
  at = at + (more == '' and 3 or 8)
end

local known = {}
for from = 1, n, 4000 do
  local keys = {}
  for i = from, min(from + 3999, n) do keys[#keys + 1] = H .. 't:' .. ids[i] end
  if redis.call('EXISTS', unpack(keys)) > 0 then
    for i = from, min(from + 3999, n) do
      if redis.call('EXISTS', H .. 't:' .. ids[i]) == 1 then known[ids[i]] = true end
    end
  end
end

local out, accepted, in_batch, more_in, order = {}, {}, {}, {}, {}
for i = 1, n do
  local m = messages[i]
  local q, holder = m.spec[1], nil
  if known[m.id] then
    holder = m.id
  else
    local key = m.at and ARGV[m.at + 2]
    if key and key ~= '' then
      local name = key_name(q.name, key)
      local digest, ttl = match(ARGV[m.at + 3], '^(%x*);(%d*)')
      local id, other = key_holder(name)
      if not id and in_batch[name] then id, other = in_batch[name][1], in_batch[name][2] end
      if id then
        if other ~= digest then return {'!key', key, id, q.name} end
        holder = id
      else
        in_batch[name] = {m.id, digest}
        m.key, m.digest, m.till = key, digest, ttl ~= '' and now + ttl or nil
      end
    end
  end
  out[i] = holder or ''
  if not holder then
    known[m.id] = true
    accepted[#accepted + 1] = m
    if not more_in[q.name] then order[#order + 1] = q end
    more_in[q.name] = (more_in[q.name] or 0) + 1
  end
end

for i = 1, #order do
  local q = order[i]
  if q.max_queued then
    local queued, counts = -running(q), redis.call('HGETALL', K('counts', q.name))
    for k = 1, #counts, 2 do
      if byte(counts[k]) == 104 then queued = queued + counts[k + 1] end -- h<spec>
    end
    if queued + more_in[q.name] > q.max_queued then return {'!full', q.name, I(q.max_queued), I(queued), I(more_in[q.name])} end
  end
end

-- ── store them ──

for i = 1, #messages do promote(messages[i].spec[1]) end

local function moment(text)
  local kind, us = match(text, '^(.)(%d+)$')
  if not kind then return nil end
  return kind == 'r' and now + us or tonumber(us)
end

local codes = {}
for i = 1, #accepted do
  local m = accepted[i]
  if m.at and ARGV[m.at + 1] ~= '' then
    local name = m.spec[1].name
    codes[name] = codes[name] or {}
    codes[name][#codes[name] + 1] = ARGV[m.at + 1]
  end
end
for name, list in pairs(codes) do load_flows(Q[name], list) end

local created = 'c' .. I(now)
local plain_in = {}
for i = 1, #accepted do
  local m = accepted[i]
  local q = m.spec[1]
  local spec = m.spec[3]
  if not spec then
    spec = spec_number(q, m.spec[2])
    m.spec[3], m.spec[4], m.spec[5] = spec, two(spec), lane(q, spec)
  end
  local seqx = next_seq()
  if not m.at then
    sets[#sets + 1] = H .. 't:' .. m.id
    sets[#sets + 1] = 'W' .. m.prio .. seqx .. m.spec[4] .. ',0,0,,,0,,\n' .. created .. m.blob
    local s = q.aging > 0 and now - m.prio * q.aging or (9 - m.prio) * PB + seq
    zadd(m.spec[5], m.prio .. seqx .. m.spec[4] .. m.id, s)
    count(q, 'r' .. m.prio, 1)
    count(q, 'h' .. spec, 1)
    enliven(q)
    wake(q.name, 1)
    if q.flows > 0 then place(q, q.plain) end
  else
    local after, expires, deadline = match(ARGV[m.at], '^(.*);(.*);(.*)$')
    local t = parse_new(m.id, 'W' .. m.prio .. seqx .. m.spec[4] .. ',0,0,,,0,,\n' .. created .. m.blob)
    local available, d, e = moment(after), moment(deadline), moment(expires)
    if available and available > now then set(t, 'a', available) end
    if d then set(t, 'd', d) end
    if e or d then set(t, 'e', min(e or d, d or e)) end
    if m.key then hold_key(q, m.key, m.id, m.digest, m.till) end
    count(q, 'h' .. spec, 1)
    if available_at(t) > now then
      wait_until(q, t, 'D', available_at(t))
    else
      enter(q, t)
    end
  end
end

for i = 1, #qs do finish_verb(qs[i]) end
commit()
return out
