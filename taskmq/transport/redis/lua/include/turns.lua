-- The short way for partitions (short.lua): those about which there is no more to say than who runs and what turn they have –
-- not stopped, nobody aside or parked, no bound on how many run. What is told in flow.lua and claim.lua, as text.
--
-- A view is one partition in one claim: line  its first members, read so far    taken  how many of them it gives
-- The line of tasks without a partition is a flow among them; the candidate reads it as it would alone (next_member).
-- A parallel partition comes again after its turn. It is left to the long way if that might be within this claim.

-- @include rest

local turns = {}
do

local set_of, entries_of, next_member = rest.set_of, rest.entries_of, rest.next_member

-- FLOW (flow.lua), with all empty that would stop a partition or set tasks of it aside: live, tag, weight, how many run, and in
-- an ordered one which, in order
local FREE = '^([01]),(%d+),(%d+),,0,,,0,(%d+);;;(.*)$'

local function text_of(live, tag, weight, n, run)
  return (live and '1,' or '0,') .. I(tag) .. ',' .. I(weight) .. ',,0,,,0,' .. I(n) .. ';;;' .. run
end

-- Whether there is more to say of such a partition than its line and turn (flow.lua, sync).
local function has_text(live, running, weight) return not live or running > 0 or weight ~= 1 end

local function ordered(code) return byte(code) == 33 end
local function turns_of(k, q, head) return set_of(k, q, 'turns', lm_spec(head)) end

-- ── publish ──

-- What is published into partitions: by code the command that puts it into its line, in the order of their first ones.
function turns.lines(q) return {q = q, codes = {}, lines = {}} end

-- The line of the message at this argument (publish.lua); nil: there is more to it than a partition.
function turns.line_of(parts, ARGV, at)
  local code = ARGV[at + 4]
  if code == '' or ARGV[at + 3] ~= ';;' or ARGV[at + 5] ~= '' or ARGV[at + 7] ~= '' then return nil end
  if not match(ARGV[at + 2], '^[mt%d]*\n') then return nil end -- the partition's weight, or a bound
  local line = parts.lines[code]
  if not line then
    line = {'ZADD', K2('part', parts.q, code), nil, nil}
    parts.lines[code], parts.codes[#parts.codes + 1] = line, code
  end
  return line
end

-- The first of the new ones in a partition's line: the most urgent, and of them the first.
local function first_of(line)
  local first = line[4]
  for i = 6, #line, 2 do
    if byte(line[i]) > byte(first) then first = line[i] end
  end
  return first
end

-- What else they change. Only reads; nil: this is not for the short way.
function turns.plan_publish(k, s, parts)
  local known = redis.call('HMGET', k.flows, unpack(parts.codes))
  parts.j, parts.flows, parts.wakes, parts.texts, parts.joined = s.j, s.flows, 0, {'HSET', k.flows, nil, nil}, {}
  for i = 1, #parts.codes do
    local code = parts.codes[i]
    local line = parts.lines[code]
    local head, first = redis.call('ZRANGE', line[2], '0', '0')[1], first_of(line)
    local live, tag, weight, running, run = head ~= nil, 0, 1, 0, ''
    if known[i] then
      live, tag, weight, running, run = match(known[i], FREE)
      if not live then return nil end
      live, tag, weight, running = live == '1', tonumber(tag), tonumber(weight), tonumber(running)
    elseif not head then
      parts.flows = parts.flows + 1
    end
    if not ordered(code) then parts.wakes = parts.wakes + (#line - 2) / 2 end
    if live then
      if not head or byte(first) > byte(head) then return nil end -- its turn changes
    elseif running == 0 or not ordered(code) then
      if head or (known[i] and running == 0) then return nil end
      parts.j, tag = join(parts.j, s.v, tag)
      parts.wakes = parts.wakes + 1
      parts.joined[#parts.joined + 1] = {turns_of(k, parts.q, first), I(lm_prio_score(first) + tag), code}
      if has_text(true, running, weight) then
        local texts = parts.texts
        texts[#texts + 1], texts[#texts + 2] = code, text_of(true, tag, weight, running, run)
      end
    end
  end
  return parts
end

-- Write that.
function turns.write_publish(k, parts)
  for i = 1, #parts.codes do redis.call(unpack(parts.lines[parts.codes[i]])) end
  for i = 1, #parts.joined do redis.call('ZADD', unpack(parts.joined[i])) end
  if parts.texts[3] then redis.call(unpack(parts.texts)) end
end

-- ── claim ──

-- A queue with partitions becomes a candidate: its turns are read here, its line of tasks without a partition beside them.
function turns.begin(c)
  c.views, c.line, c.view = {}, false, false
  c.codes, c.scores, c.texts, c.turn, c.turns_read, c.turns_done = NONE, NONE, NONE, 0, 0, false
  if c.plive then
    c.line = {plain = true, tag = c.tag, weight = 1, head = nil, gave = false}
  end
end

local function next_turn(c, page)
  c.turn = c.turn + 1
  if c.turn > #c.codes and not c.turns_done then
    local specs, more = #c.state.specs, max(page, c.turns_read)
    if specs > 1 and c.turns_read == 0 then more = min(page, floor(page / specs) + 2) end -- it reads so many of each
    c.codes, c.scores = entries_of(c.k, c.name, 'turns', specs, c.turns_read, more)
    c.turns_read, c.turn, c.turns_done = c.turns_read + more, 1, #c.codes < more
    if c.codes[1] then c.texts = redis.call('HMGET', c.k.flows, unpack(c.codes)) end
  end
end

local function view_of(c, code, score, text)
  local weight, running, run, _ = 1, 0, '', nil
  if text then
    _, _, weight, running, run = match(text, FREE)
    if not run or run ~= '' then return nil end
    weight, running = tonumber(weight), tonumber(running)
  end
  local key = K2('part', c.name, code)
  local line = redis.call('ZRANGE', key, '0', '1')
  if not line[1] then return nil end
  return {
    c = c, code = code, ordered = ordered(code), tag = score - floor(score / PB) * PB, weight = weight, running = running,
    key = key, line = line, head = line[1], taken = 0, group = false, plain = false
  }
end

-- Whose turn comes next in the queue, its line or a partition, gives its head; false: nobody's, nil: this is not for the
-- short way.
function turns.advance(c, page)
  local line = c.line
  if line and not line.head then line.head = next_member(c, page) end
  if not c.view or c.view ~= line then next_turn(c, page) end
  local code, score = c.codes[c.turn], c.scores[c.turn]
  local v
  if line and line.head then
    local s = lm_prio_score(line.head) + line.tag
    if not code or stands_before(s, '', score, code) then v, code, score = line, '', s end
  end
  if c.again and not (code and stands_before(score, code, c.again, c.again_code)) then return nil end
  if not code then return false end
  c.view = v or view_of(c, code, score, c.texts[c.turn])
  if not c.view then return nil end
  c.head = c.view.head
  c.band = byte(c.head) - 48
  return true
end

-- The head takes its turn. Answers its view, or false if it has no partition.
function turns.take(c)
  local v = c.view
  c.v, v.tag = take_turn(c.v, v.tag, v.weight)
  if v.plain then
    v.gave, v.head = true, nil
    return false
  end
  v.taken = 1
  if not v.ordered and v.line[2] then
    local s = lm_prio_score(v.line[2]) + v.tag
    if not c.again or stands_before(s, v.code, c.again, c.again_code) then c.again, c.again_code = s, v.code end
  end
  c.views[#c.views + 1] = v
  return v
end

-- What a line that gave has left, and its turn.
function turns.look_behind(c)
  local line = c.line
  if not line or not line.gave then return end
  c.tag, c.plive = line.tag, (line.head or next_member(c, 1)) ~= nil
end

-- The next follower in an ordered partition's run.
function turns.follower(v, page)
  if v.c.room == 0 then return nil end
  local n = #v.line
  if v.taken == n and n > 1 then
    local more = redis.call('ZRANGE', v.key, I(n), I(n + page - 1))
    for i = 1, #more do v.line[n + i] = more[i] end
  end
  return v.line[v.taken + 1]
end

-- What a claim leaves of a queue's partitions that gave.
function turns.write_claim(c)
  local k, q, texts, out, into = c.k, c.name, {'HSET', c.k.flows, nil, nil}, {}, {}
  for i = 1, #c.views do
    local v = c.views[i]
    local head, behind, run = v.line[1], not v.ordered and v.line[2], ''
    if v.ordered then
      local parts = {nil}
      for j = 1, v.taken do
        local m = v.line[j]
        parts[j] = I(lm_prio_score(m) + number(sub(m, 2, 9))) .. ' ' .. m
      end
      run = concat(parts, ' ')
    end
    texts[2 * i + 1], texts[2 * i + 2] = v.code, text_of(behind, v.tag, v.weight, v.running + v.taken, run)
    redis.call('ZREM', v.key, unpack(v.line, 1, v.taken))
    local from = turns_of(k, q, head)
    local to = behind and turns_of(k, q, behind)
    if from ~= to then
      local words = out[from] or {'ZREM', from, nil}
      out[from], words[#words + 1] = words, v.code
    end
    if to then
      local words = into[to] or {'ZADD', to, nil, nil}
      into[to], words[#words + 1], words[#words + 2] = words, I(lm_prio_score(behind) + v.tag), v.code
    end
  end
  redis.call(unpack(texts))
  for _, words in pairs(out) do redis.call(unpack(words)) end
  for _, words in pairs(into) do redis.call(unpack(words)) end
end

-- ── settle ──

-- What successes leave of a queue's partitions: of each task that ended its code and what stood in line. Only reads; nil: this
-- is not for the short way.
function turns.plan_settle(k, q, s, codes, members)
  local texts = redis.call('HMGET', k.flows, unpack(codes))
  local left = {j = s.j, joined = 0, flows = s.flows, list = {}}
  local known = {}
  for i = 1, #codes do
    local code = codes[i]
    local f = known[code]
    if not f then
      local live, tag, weight, running, run = match(texts[i] or '', FREE)
      if not live then return nil end
      f = {
        code = code, ordered = ordered(code), live = live == '1', tag = tonumber(tag), weight = tonumber(weight),
        running = tonumber(running), run = run, head = false, gone = false
      }
      known[code], left.list[#left.list + 1] = f, f
    end
    f.running = f.running - 1
    if f.ordered then
      local first, behind = match(f.run, '^%d+ (%S+) ?()')
      if first ~= members[i] then return nil end
      f.run = sub(f.run, behind)
    end
    if f.running == 0 and not f.live then
      f.head = redis.call('ZRANGE', K2('part', q, code), '0', '0')[1]
      if not f.head then
        f.gone, left.flows = true, left.flows - 1
      elseif f.ordered then
        left.j, f.tag = join(left.j, s.v, f.tag)
        left.joined, f.live = left.joined + 1, true
      else
        return nil
      end
    end
  end
  return left
end

-- Write that.
function turns.write_settle(k, q, left)
  local texts, gone = {'HSET', k.flows, nil, nil}, {'HDEL', k.flows, nil}
  for i = 1, #left.list do
    local f = left.list[i]
    if f.head and not f.gone then
      redis.call('ZADD', turns_of(k, q, f.head), I(lm_prio_score(f.head) + f.tag), f.code)
    end
    if f.gone or not has_text(f.live, f.running, f.weight) then
      gone[#gone + 1] = f.code
    else
      texts[#texts + 1], texts[#texts + 2] = f.code, text_of(f.live, f.tag, f.weight, f.running, f.run)
    end
  end
  if texts[3] then redis.call(unpack(texts)) end
  if gone[3] then redis.call(unpack(gone)) end
end

end
