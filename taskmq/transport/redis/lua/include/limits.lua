-- Concurrency limits by key. Twin of policy/limits.py (essay there) and transport/memory/limits.py.
--
-- A line of parked tasks is a queue's tasks of one spec and one n. Its sets, each named by spec, n and key:
-- limit:<key>             "running\n" and for each line of parked tasks "queue\tspec\tn\tparked\towed\tv\tj\n"
-- limits                  ZSET of the keys that have something running or parked
-- parked:<len>:<q>:<spec>:<n>:<key>  ZSET of a line's tasks (lm) by turn. Strict: score (9 - priority) * 2^49 + tag; aging:
--                         score dispatch_at, and no more sets
-- theirs:<len>:<q>:<spec>:<n>:<len of key>:<key>:<code>  ZSET of the tasks of one partition in it, as they stood in its line
-- tags:<…>                ZSET of their seqs by tag
-- owing:<q>               ZSET of "key\0n\0spec" of the lines that are owed a return
--
-- Tags grow one U a round for as long as a line does not get empty, and 2^53 is far. Beyond 2^49 a task that others of
-- a higher priority have passed by for that long may come before them, once.

-- @include task

local wake, limit, free, start_limit, release_limit, missed, park_limit, unpark_limit, owed_ids, first_owed, returned,
  owing_lines, L, wakes
do

-- L: keys by name   wakes: queue name → how many waiters there is work for
L = {}
fresh[#fresh + 1] = function()
  if next(L) then L = {} end
  wakes = {}
end

function wake(name, n) wakes[name] = (wakes[name] or 0) + n end

local function place_of(name, spec, n) return name .. '\t' .. I(spec) .. '\t' .. I(n) end

local function new_line(key, name, spec, n)
  local of = I(spec) .. ':' .. I(n) .. ':'
  local partition = of .. #key .. ':' .. key .. ':'
  return {
    key = key, q = name, spec = spec, n = n, parked = 0, owed = 0, v = 0, j = 0, last = {},
    theirs = K2('theirs', name, partition), tags = K2('tags', name, partition), set = zset(K2('parked', name, of .. key)), member = key .. '\0' .. format('%07.0f', n) .. '\0' .. format('%04.0f', spec)
  }
end

function limit(key)
  local k = L[key]
  if not k then
    local s = redis.call('GET', H .. 'limit:' .. key)
    k = {key = key, running = 0, lines = {}, stored = s and true}
    if s then
      k.running = tonumber(match(s, '^%d+'))
      for name, spec, n, parked, owed, v, j in gmatch(s, '\n([^\t]+)\t(%d+)\t(%d+)\t(%d+)\t(%d+)\t(%d+)\t(%d+)') do
        local line = new_line(key, name, tonumber(spec), tonumber(n))
        line.parked, line.owed, line.v, line.j = tonumber(parked), tonumber(owed), tonumber(v), tonumber(j)
        k.lines[name .. '\t' .. spec .. '\t' .. n] = line
      end
    end
    L[key] = k
  end
  return k
end

function free(key, n) return n - limit(key).running end

local function noted(k)
  k.dirty = true
  for _, line in pairs(k.lines) do
    if line.owed > 0 then
      zadd(zset(K('owing', line.q)), line.member, 0)
      enliven(queue(line.q))
      wake(line.q, 1)
    end
  end
end

local function settled(line) zrem(zset(K('owing', line.q)), line.member) end

local function missed_line(k, line)
  if line and line.owed < line.n and line.n - k.running > 0 then line.owed = line.owed + 1 end
end

function start_limit(key)
  local k = limit(key)
  k.running, k.dirty = k.running + 1, true
end

function release_limit(key)
  local k = limit(key)
  k.running = k.running - 1
  for _, line in pairs(k.lines) do missed_line(k, line) end
  noted(k)
end

-- A task that stood in line for a free slot cannot take it: another one may.
function missed(q, t)
  local key, n = limit_of(t)
  if not key then return end
  local k = limit(key)
  missed_line(k, k.lines[place_of(q.name, t.spec, n)])
  noted(k)
end

-- ── turns ──

local function theirs(line, name) return zset(line.theirs .. name) end
local function tags(line, name) return zset(line.tags .. name) end
local function seq_of(m) return sub(m, 2, 9) end
local function tag_in(line, m) return zscore(line.set, m) - lm_prio_score(m) end

-- The tag of a task that is parked now.
local function new_tag(line, name, weight)
  local last = line.last[name] or zlast(tags(line, name))
  if last then
    local _, tag = take_turn(last, last, weight)
    return tag
  end
  line.j = join(line.j, line.v, 0)
  return line.j
end

local function add(q, line, m, s, name, weight)
  if q.aging > 0 then return zadd(line.set, m, s) end
  local tag = new_tag(line, name, weight)
  line.last[name] = tag
  zadd(line.set, m, lm_prio_score(m) + tag)
  zadd(theirs(line, name), m, s)
  zadd(tags(line, name), seq_of(m), tag)
end

-- Takes a task out; its tag.
local function remove(q, line, m, name)
  local tag = q.aging > 0 and 0 or tag_in(line, m)
  zrem(line.set, m)
  if q.aging == 0 then
    line.last[name] = nil
    zrem(theirs(line, name), m)
    zrem(tags(line, name), seq_of(m))
  end
  return tag
end

-- The task that returns next: its partition's first, which gets the tag of the turn.
local function first(q, line)
  local m = zfirst(line.set)
  if q.aging > 0 then return m end
  local name = code(task(ref_id(m)))
  local best = zfirst(theirs(line, name))
  if best ~= m then
    local turns, turn, other = tags(line, name), tag_in(line, m), tag_in(line, best)
    zadd(line.set, best, lm_prio_score(best) + turn)
    zadd(line.set, m, lm_prio_score(m) + other)
    zadd(turns, seq_of(best), turn)
    zadd(turns, seq_of(m), other)
  end
  return best
end

-- ── parked ──

-- A task of this partition (name, weight) waits for a slot; m, s: its place in its line.
function park_limit(q, m, s, key, n, name, weight)
  local spec = lm_spec(m)
  local k, at = limit(key), place_of(q.name, spec, n)
  local line = k.lines[at] or new_line(key, q.name, spec, n)
  k.lines[at] = line
  line.parked, k.dirty = line.parked + 1, true
  add(q, line, m, s, name, weight)
end

-- A parked task returns to its line, or has ended.
function unpark_limit(q, t)
  local key, n = limit_of(t)
  local k, at = limit(key), place_of(q.name, t.spec, n)
  local line = k.lines[at]
  line.v = max(line.v, remove(q, line, lm(t), code(t)))
  line.parked = line.parked - 1
  if line.parked == 0 then
    k.lines[at] = nil
    settled(line)
  end
  noted(k)
end

-- The lines of a queue that are owed a return, by key, n and handler: key, n and spec of each.
function owing_lines(q)
  local found, names = {}, nil
  local entries = walk({zset(K('owing', q.name))}, 10, BATCH)
  local m = entries()
  while m do
    local key, n, spec = match(m, '^(.*)%z(%d+)%z(%d+)$')
    local line, i = {key = key, n = tonumber(n), spec = tonumber(spec)}, #found + 1
    found[i] = line
    while i > 1 and found[i - 1].key == key and found[i - 1].n == line.n do -- specs are numbered as they came
      names = names or spec_names(q)
      if not before(names[line.spec], names[found[i - 1].spec]) then break end
      found[i], found[i - 1] = found[i - 1], line
      i = i - 1
    end
    m = entries()
  end
  return found
end

-- Ids of those that a line is owed, as far as nobody of their partitions comes before them; at most k.
function owed_ids(q, of, k)
  local ids, line = {}, limit(of.key).lines[place_of(q.name, of.spec, of.n)]
  k = line and min(k, line.owed) or 0
  local entries = k > 0 and walk({line.set}, k, k)
  for i = 1, k do
    local m = entries()
    if not m then break end
    ids[i] = ref_id(m)
  end
  return ids
end

-- The next task (lm) that is to return to its line, if one is owed.
function first_owed(q, of)
  local k = limit(of.key)
  local line = k.lines[place_of(q.name, of.spec, of.n)]
  if line then
    line.owed, k.dirty = max(0, min(line.owed, line.n - k.running)), true
    if min(line.owed, line.parked) > 0 then return first(q, line) end
    settled(line)
  else
    settled(new_line(of.key, q.name, of.spec, of.n))
  end
end

-- One that was owed stands in line and can start.
function returned(q, of)
  local k = limit(of.key)
  local line = k.lines[place_of(q.name, of.spec, of.n)]
  if line then line.owed, k.dirty = line.owed - 1, true end
end

end
