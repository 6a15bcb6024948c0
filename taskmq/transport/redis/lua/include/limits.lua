-- Concurrency limits by key. Twin of policy/limits.py (essay there) and transport/memory/limits.py.
--
-- limit:<key>             "running\n" and for each line of parked tasks "queue\tn\tparked\towed\n"
-- limits                  ZSET of the keys that have something running or parked
-- parked:<len>:<q>:<n>:<key>  ZSET of parked tasks, as they stood in their lines
-- owing:<q>               ZSET of "key\0n" of the lines that are owed a return

-- @include task

local wake, limit, free, start_limit, release_limit, missed, park_limit, unpark_limit, first_owed, returned, L,
  wakes
do

-- L: keys by name   wakes: queue name → how many waiters there is work for
fresh[#fresh + 1] = function() L, wakes = {}, {} end

function wake(name, n) wakes[name] = (wakes[name] or 0) + n end

function limit(key)
  local k = L[key]
  if not k then
    local s = redis.call('GET', H .. 'limit:' .. key)
    k = {key = key, running = 0, lines = {}, stored = s and true}
    if s then
      k.running = tonumber(match(s, '^%d+'))
      for name, n, parked, owed in gmatch(s, '\n([^\t]+)\t(%d+)\t(%d+)\t(%d+)') do
        k.lines[name .. '\t' .. n] = {q = name, n = tonumber(n), parked = tonumber(parked), owed = tonumber(owed)}
      end
    end
    L[key] = k
  end
  return k
end

local function at_limit(name, n) return name .. '\t' .. I(n) end
function free(key, n) return n - limit(key).running end
local function owing_member(key, n) return key .. '\0' .. format('%07.0f', n) end
local function parked_set(name, key, n) return zset(K2('parked', name, I(n) .. ':' .. key)) end

local function noted(k)
  k.dirty = true
  for _, line in pairs(k.lines) do
    if line.owed > 0 then
      zadd(zset(K('owing', line.q)), owing_member(k.key, line.n), 0)
      enliven(queue(line.q))
      wake(line.q, 1)
    end
  end
end

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
function missed(name, key, n)
  local k = limit(key)
  missed_line(k, k.lines[at_limit(name, n)])
  noted(k)
end

function park_limit(name, key, n, member, s)
  local k, at = limit(key), at_limit(name, n)
  local line = k.lines[at]
  if not line then
    line = {q = name, n = n, parked = 0, owed = 0}
    k.lines[at] = line
  end
  line.parked, k.dirty = line.parked + 1, true
  zadd(parked_set(name, key, n), member, s)
end

function unpark_limit(name, key, n, member)
  local k, at = limit(key), at_limit(name, n)
  local line = k.lines[at]
  zrem(parked_set(name, key, n), member)
  line.parked = line.parked - 1
  if line.parked == 0 then
    k.lines[at] = nil
    zrem(zset(K('owing', name)), owing_member(key, n))
  end
  noted(k)
end

-- The next task that is to return to its line, if one is owed.
function first_owed(name, key, n)
  local k = limit(key)
  local line = k.lines[at_limit(name, n)]
  if line then
    line.owed, k.dirty = max(0, min(line.owed, n - k.running)), true
    if min(line.owed, line.parked) > 0 then return (zfirst(parked_set(name, key, n), BATCH)) end
  end
  zrem(zset(K('owing', name)), owing_member(key, n))
end

function returned(name, key, n)
  local k = limit(key)
  local line = k.lines[at_limit(name, n)]
  if line then line.owed, k.dirty = line.owed - 1, true end
end

end
