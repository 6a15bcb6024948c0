-- A queue at rest: nothing is due and it has seen no limit. What the short ways (short.lua, turns.lua) read and write of it.

-- @include commit

local rest = {}
do

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
    flows = K('flows', q), line = {}, turns = {}
  })
end

-- The key of a queue's `line` or `turns` of a spec.
local function set_of(k, q, what, spec)
  local key = k[what][spec] or K(what .. ':' .. I(spec), q)
  k[what][spec] = key
  return key
end

-- A queue's settings and state, if it is at rest. idle: although it may have nothing to look at.
local function at_rest(conf, state, idle)
  if not state then return nil end
  local c, s = settings_of(conf or '').__index, state_of(state)
  if s.limited or not (s.live or idle) or (s.due and s.due <= now) then return nil end
  return c, s
end

-- Members and scores of a queue's lines or turns: the first n behind the first `from`. Of a single line no scores.
local function entries_of(k, q, what, specs, from, n)
  if specs == 1 and what == 'line' then
    return redis.call('ZRANGE', set_of(k, q, what, 1), I(from), I(from + n - 1))
  end
  local sets, at, members, scores = {}, {}, {}, {}
  for spec = 1, specs do
    sets[spec], at[spec] = redis.call('ZRANGE', set_of(k, q, what, spec), '0', I(from + n - 1), 'WITHSCORES'), 1
  end
  for i = 1, from + n do
    local best, bm, bs
    for spec = 1, specs do
      local m = sets[spec][at[spec]]
      if m then
        local score = tonumber(sets[spec][at[spec] + 1])
        if not best or stands_before(score, m, bs, bm) then best, bm, bs = spec, m, score end
      end
    end
    if not best then break end
    at[best] = at[best] + 2
    if i > from then members[#members + 1], scores[#scores + 1] = bm, bs end
  end
  return members, scores
end

-- The next member of a queue's line, or nil. c: how far it was read, whose changes are written later.
local function next_member(c, page)
  c.at = c.at + 1
  if c.at > #c.members then
    if c.done then return nil end
    c.members, c.read, c.at = entries_of(c.k, c.name, 'line', #c.state.specs, c.read, page), c.read + page, 1
    c.done = #c.members < page
  end
  return c.members[c.at]
end

-- The state of a queue at rest after a change.
local function state_after(s, v, j, tag, plive, flows, due)
  return concat({I(v), I(j), I(tag), plive and '1' or '0', I(flows), '0', '1', due and I(due) or '', s.specs}, ',')
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

rest.keys_of, rest.set_of, rest.at_rest, rest.entries_of = keys_of, set_of, at_rest, entries_of
rest.next_member, rest.state_after, rest.wake_up, rest.count_in = next_member, state_after, wake_up, count_in

end
