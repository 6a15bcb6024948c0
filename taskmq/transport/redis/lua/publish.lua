-- Publish: stores messages in order, all or none.
--
-- ARGV   3 number of queues, then their names
--        specs: number, then for each "queue's index" and "handler\0version\0keyed"
--        for each message: "spec's index,priority" or, when there is more to it, "spec's index,priority,x", then id and the
--        static part of its record (from the letters of line 2 on); and with x: "run_after;expires;deadline" (r: from now,
--        a: absolute), partition code, key, "digest;ttl", limit key
-- reply  nothing if all were stored, else a string for each message: "" when it was stored, the id of the first one when it
--        is a duplicate; {"!key", key, id, queue} when a key is taken by other content, {"!full", queue, max_queued, queued, more}:
--        nothing was stored
-- all or none  because all writes are made at the end; one script, so key check and insert are one step

-- @include commit
-- @include short

local function moment(text)
  local kind, us = match(text, '^(.)(%d+)$')
  if not kind then return nil end
  return kind == 'r' and now + us or tonumber(us)
end

-- Which of these are stored already, as keys.
local function stored(ids, n)
  local known = {}
  for from = 1, n, 4000 do
    local keys, upto = {}, min(from + 3999, n)
    for i = from, upto do keys[i - from + 1] = H .. 't:' .. ids[i] end
    if redis.call('EXISTS', unpack(keys)) > 0 then
      for i = from, upto do
        if redis.call('EXISTS', H .. 't:' .. ids[i]) == 1 then known[ids[i]] = true end
      end
    end
  end
  return known
end

-- What is said of a queue that has no room for so many more.
local function refusal_of_full(q, more)
  local queued, counts = -running(q), redis.call('HGETALL', K('counts', q.name))
  for k = 1, #counts, 2 do
    if byte(counts[k]) == 104 then queued = queued + counts[k + 1] end -- h<spec>
  end
  if queued + more > q.max_queued then return {'!full', q.name, I(q.max_queued), I(queued), I(more)} end
end

-- Who holds the key of a message: an id, and whether its content is another one. Else the key is the message's own.
local function holder_of(key, q, id, digest_and_life, in_batch)
  local name = key_name(q.name, key)
  local digest = match(digest_and_life, '^(%x*)')
  local holder, other = key_holder(name)
  if not holder and in_batch[name] then holder, other = in_batch[name][1], in_batch[name][2] end
  if holder then return holder, other ~= digest end
  in_batch[name] = {id, digest}
end

-- Tasks of one spec and priority that have nothing more to them: straight into their line, a member at a time into `set`,
-- or, where nobody looks at the line any more, into the command itself (that saves a seventh of the Lua).
local function stand_plainly(kind, id, blob, created, digits)
  local q, place_in_line = kind.q, kind.prio .. digits .. kind.specx
  local s = q.aging > 0 and now - kind.prio * q.aging or kind.base + seq
  local n = #sets
  sets[n + 1], sets[n + 2] = H .. 't:' .. id, 'W' .. place_in_line .. created .. blob
  local come = kind.come
  if come then
    n = #come
    come[n + 1], come[n + 2] = I(s), place_in_line .. id
  else
    zadd(kind.line, place_in_line .. id, s)
  end
  kind.n = kind.n + 1
  if q.flows > 0 then
    enliven(q)
    place(q, q.plain)
  end
end

-- A task that has a partition, key, limit or times.
local function stand_or_wait(kind, id, blob, created, digits, ARGV, at)
  local q = kind.q
  local after, expires, deadline = match(ARGV[at], '^(.*);(.*);(.*)$')
  local t = parse_new(id, 'W' .. kind.prio .. digits .. kind.specx .. created .. blob)
  local available, d, e = moment(after), moment(deadline), moment(expires)
  if available and available > now then set(t, 'a', available) end
  if d then set(t, 'd', d) end
  if e or d then set(t, 'e', min(e or d, d or e)) end
  if ARGV[at + 2] ~= '' then
    local digest, ttl = match(ARGV[at + 3], '^(%x*);(%d*)')
    hold_key(q, ARGV[at + 2], id, digest, ttl ~= '' and now + ttl or nil)
  end
  count(q, 'h' .. kind.spec, 1)
  if available_at(t) > now then
    wait_until(q, t, 'D', available_at(t))
  else
    enter(q, t)
  end
end

-- @body

local at, names, specs = 4 + ARGV[3], {}, {}
for i = 4, at - 1 do names[i - 3] = ARGV[i] end
load_queues(names, false, true)
for i = 1, ARGV[at] do specs[i] = {q = Q[names[tonumber(ARGV[at + 2 * i - 1])]], name = ARGV[at + 2 * i]} end
at = at + 1 + 2 * #specs

-- ── which messages are new ──

-- kinds: by their first argument, of which there are few: queue, spec and priority, and whether there is more to them
local kinds, kind_of, ids, ats, n, any_more = {}, {}, {}, {}, 0, false
while ARGV[at] do
  local first = ARGV[at]
  local kind = kinds[first]
  if not kind then
    local spec, prio, more = match(first, '^(%d+),(%d)(.*)$')
    spec = specs[tonumber(spec)]
    kind = {of = spec, q = spec.q, prio = prio, more = more ~= '', base = (9 - prio) * PB, n = 0}
    kinds[first], any_more = kind, any_more or kind.more
  end
  n = n + 1
  kind_of[n], ids[n], ats[n] = kind, ARGV[at + 1], at + 2
  at = at + (kind.more and 8 or 3)
end

local known = stored(ids, n)
local out, more_in, order, in_batch = {}, {}, {}, {}
for i = 1, n do
  local q, id = kind_of[i].q, ids[i]
  local holder = known[id] and id
  local key = not holder and kind_of[i].more and ARGV[ats[i] + 3]
  if key and key ~= '' then
    local conflict
    holder, conflict = holder_of(key, q, id, ARGV[ats[i] + 4], in_batch)
    if conflict then return {'!key', key, holder, q.name} end
  end
  out[i] = holder or ''
  if not holder then
    known[id] = true
    if not more_in[q] then
      order[#order + 1], more_in[q] = q, 0
    end
    more_in[q] = more_in[q] + 1
  end
end
for i = 1, #order do
  local refusal = order[i].max_queued and refusal_of_full(order[i], more_in[order[i]])
  if refusal then return refusal end
end

-- ── store them ──

for i = 1, #names do promote(Q[names[i]]) end

if any_more then
  local codes = {}
  for i = 1, n do
    if out[i] == '' and kind_of[i].more and ARGV[ats[i] + 2] ~= '' then
      local q = kind_of[i].q
      codes[q] = codes[q] or {}
      codes[q][#codes[q] + 1] = ARGV[ats[i] + 2]
    end
  end
  for q, list in pairs(codes) do load_flows(q, list) end
end

local created = ',0,0,,,0,,\nc' .. I(now)
for i = 1, n do
  if out[i] == '' then
    local kind = kind_of[i]
    if not kind.specx then
      local of, q = kind.of, kind.q
      of.number = of.number or spec_number(q, of.name)
      kind.spec, kind.specx, kind.line = of.number, two(of.number), lane(q, of.number)
      if not any_more and q.flows == 0 then kind.come = {'ZADD', kind.line.key} end
    end
    local digits = next_seq()
    if kind.more then
      stand_or_wait(kind, ids[i], ARGV[ats[i]], created, digits, ARGV, ats[i] + 1)
    else
      stand_plainly(kind, ids[i], ARGV[ats[i]], created, digits)
    end
  end
end
for _, kind in pairs(kinds) do
  if kind.n > 0 then
    count(kind.q, 'r' .. kind.prio, kind.n)
    count(kind.q, 'h' .. kind.spec, kind.n)
    enliven(kind.q)
    wake(kind.q.name, kind.n)
    if kind.come then in_pieces(kind.come, 2) end
  end
end

for i = 1, #names do finish_verb(Q[names[i]]) end
commit()
return out
