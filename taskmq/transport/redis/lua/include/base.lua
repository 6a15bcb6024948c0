-- What every script stands on: the prefix, the clock, sorted sets with this call's own changes.
--
-- All scripts and includes are one library, loaded into the server once (scripts.py). An include names first what it gives
-- to others, because Lua allows a function 200 locals; between `do` and `end` it keeps the rest to itself. What lives for
-- one call only is made anew by the functions in `fresh`; a table that nobody has used stays.
--
-- A script's body only reads. What it wants to change it changes in Lua tables, and `commit` (commit.lua) turns them into
-- commands at the very end, none of whose replies anybody looks at. (The short ways write by themselves, at their end, too.)
-- So a script that fails half-way has changed nothing, and the same file can run outside the server: its reads under WATCH,
-- its writes as one MULTI/EXEC (?lua=off).
--
-- ARGV[1] prefix of all keys   ARGV[2] the time in microseconds, 0: the server's clock
-- KEYS    in a cluster {p}{name}:state, and a key that never exists: a call is about one queue (or another name), and all its
--         keys are in that name's slot. The second one makes the server answer TRYAGAIN while the slot moves.

local run = {} -- the scripts by name
local short = {} -- short ways to the same answers by name (short.lua); nil from one says: not this call
local P, now
local H, home -- what keys begin with that are no queue's: the prefix, in a cluster with a name's slot; that name, else nil
local W -- commands for the end
local fresh, clean = {}, false
local woken, begun -- in a cluster told beside every reply: how many waiters there is work for, whether the queue is new

-- While it loads a library a server keeps Lua's own libraries from it; they are there at the first call.
local format, sub, byte, match, gmatch, concat, floor, max, min
local function prepare()
  format, sub, byte, match, gmatch = string.format, string.sub, string.byte, string.match, string.gmatch
  concat, floor, max, min = table.concat, math.floor, math.max, math.min
end

local function renew()
  for i = 1, #fresh do fresh[i]() end
end

local function enter_script(name, KEYS, ARGV)
  if not format then prepare() end
  if not clean then -- the last one failed
    renew()
    clean = true
  end
  P, now = ARGV[1], tonumber(ARGV[2])
  H, home = P, nil
  if KEYS[1] then
    H = sub(KEYS[1], 1, -#'state' - 1)
    home = sub(H, #P + 2, -#'}:' - 1)
  end
  if now == 0 then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  local reply = short[name] and short[name](ARGV)
  if reply then
    if home then
      reply = {reply, woken, begun}
      woken = 0
    end
    return reply
  end
  clean = false
  reply = run[name](ARGV)
  if home then reply = {reply, woken, begun} end
  renew()
  clean = true
  return reply
end

-- The keys of a queue, and of what it has by name. Twin of keys.py.
local function K(what, name)
  if not home then return P .. what .. ':' .. name end
  if name ~= home then error('queue ' .. name .. ' is not in the slot of ' .. home) end
  return H .. what
end
local function K2(what, name, part)
  if not home then return P .. what .. ':' .. #name .. ':' .. name .. ':' .. part end
  return K(what .. ':', name) .. part
end

-- Most tasks that one call promotes or deletes, over all its queues; of what is dearer – in partitions, ended leases, late
-- starts – half as many, and of parked ones that return a quarter, less the more fell due (reserve.lua). Each takes 15 to
-- 80 µs, during which the server answers nobody; and a call is cheap, so more at once would gain nothing.
local BATCH, HALF = 48, 24

-- An integer in a command. Lua's own way keeps 14 digits, and writes -0 and 1e+15 differently on Redis and Valkey; and %d
-- takes a third of the time of %.0f.
local function I(x) return format('%d', x) end

-- Any number in a command; whole ones, which most are, in a tenth of the time.
local function real(x) return x == floor(x) and x < 2 ^ 53 and I(x) or format('%.17g', x) end

-- Whether text a sorts before b by its bytes. Lua's < asks the server's locale.
local function before(a, b)
  if a == b then return false end
  local from, n = 1, min(#a, #b)
  while from + 7 <= n and sub(a, from, from + 7) == sub(b, from, from + 7) do from = from + 8 end
  for i = from, n do
    local x, y = byte(a, i), byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- A memory of what texts say, by the text, for many calls; so it may only hold what follows from the text alone, and
-- nobody may change it. When it is full it begins anew.
local function kept(most)
  local known, n = {}, 0
  return function(text) return known[text] end, function(text, meaning)
    n = n + 1
    if n > most then known, n = {}, 1 end
    known[text] = meaning
    return meaning
  end
end

local function write(...) W[#W + 1] = {...} end
local function send()
  for i = 1, #W do redis.call(unpack(W[i])) end
end

local zset, zload, zadd, zrem, zfirst, zlast, zscore, walk, Z
do

-- ── sorted sets ──
-- m, s: members and scores read so far, in order; n: how many; done: read to the end; i: the first that may be alive
-- add: member → score, del: member → true: this script's changes, which hide what the server has; am, as: the first of add,
--      if none of ties, which have its score, is before it

local NOTHING = {}
fresh[#fresh + 1] = function() W, Z, woken, begun = {}, {}, 0, 0 end
function zset(key)
  local z = Z[key]
  if not z then
    z = {key = key, m = NOTHING, s = NOTHING, n = 0, i = 1, add = NOTHING, del = NOTHING, done = false, dirty = false}
    Z[key] = z
  end
  return z
end

-- Read k more of its members.
function zload(z, k)
  local r = redis.call('ZRANGE', z.key, z.n, z.n + k - 1, 'WITHSCORES')
  if #r > 0 and z.n == 0 then z.m, z.s = {}, {} end
  local m, s, n = z.m, z.s, z.n
  for i = 1, #r, 2 do
    n = n + 1
    m[n], s[n] = r[i], tonumber(r[i + 1])
  end
  z.done = n - z.n < k
  z.n = n
end

local function change_of(z)
  z.add, z.del, z.dirty = {}, {}, true
end

function zadd(z, member, score)
  if not z.dirty then change_of(z) end
  z.add[member] = score
  if z.del[member] then z.del[member] = nil end -- to set nil where nothing is makes a table grow
  if z.stale then return end
  if z.am == member then
    z.stale = true
  elseif z.am == nil or score < z.as then
    z.am, z.as, z.ties = member, score, nil
  elseif score == z.as then
    -- Leases and what has ended are many of one score, alike for 30 letters, and nobody asks for their first: to compare
    -- each one here took a quarter of a claim of 100.
    local ties = z.ties
    if ties then ties[#ties + 1] = member else z.ties = {member} end
  end
end

function zrem(z, member)
  if not z.dirty then change_of(z) end
  if z.am == member then z.stale = true end
  if z.add[member] then z.add[member] = nil end
  z.del[member] = true
end

-- The first of this script's additions: am, as; looked for again when it was taken out (then stale).
local function first_added(z)
  if z.stale then
    z.am, z.stale, z.ties = nil, nil, nil
    for a, x in pairs(z.add) do
      if z.am == nil or x < z.as or (x == z.as and before(a, z.am)) then z.am, z.as = a, x end
    end
  elseif z.ties then
    for i = 1, #z.ties do
      local a = z.ties[i]
      if z.add[a] == z.as and before(a, z.am) then z.am = a end
    end
    z.ties = nil
  end
  return z.am, z.as
end

-- The first member and its score; nil when there is none. Reads k at a time.
function zfirst(z, k)
  local m, s
  while true do
    m = z.m[z.i]
    if m == nil then
      if z.done then break end
      zload(z, k or 1)
    elseif z.add[m] or z.del[m] then
      z.i = z.i + 1
    else
      s = z.s[z.i]
      break
    end
  end
  local a, x = first_added(z)
  if a and (m == nil or x < s or (x == s and before(a, m))) then return a, x end
  return m, s
end

-- The greatest score; nil when the set is empty.
function zlast(z)
  local most
  for _, s in pairs(z.add) do
    if not most or s > most then most = s end
  end
  local from, k = 1, 1
  while true do
    local r = redis.call('ZRANGE', z.key, -(from + k - 1), -from, 'WITHSCORES')
    for i = #r - 1, 1, -2 do
      if not z.add[r[i]] and not z.del[r[i]] then return max(most or 0, tonumber(r[i + 1])) end
    end
    if #r < 2 * k then return most end
    from, k = from + k, 100
  end
end

-- The score of a member; nil when it is not there.
function zscore(z, member)
  if z.del[member] then return nil end
  if z.m[z.i] == member and not z.add[member] then return z.s[z.i] end
  local s = z.add[member] or redis.call('ZSCORE', z.key, member)
  return s and tonumber(s)
end

-- A cursor over a set as it is now: step it, then look at its m and s; m is nil at the end. Reads `first`, then `page`.
local function cursor(z, first, page)
  local added = NOTHING
  if z.dirty and next(z.add) then
    added = {}
    for m, s in pairs(z.add) do added[#added + 1] = {m, s} end
    table.sort(added, function(a, b) return a[2] < b[2] or (a[2] == b[2] and before(a[1], b[1])) end)
  end
  return {z = z, i = z.i, added = added, j = 1, first = first, page = page}
end

local function step(c)
  local z, m, s = c.z, nil, nil
  while true do
    m = z.m[c.i]
    if m == nil then
      if z.done then break end
      zload(z, z.n == 0 and c.first or c.page)
    elseif z.add[m] or z.del[m] then
      c.i = c.i + 1
    else
      s = z.s[c.i]
      break
    end
  end
  local a = c.added[c.j]
  if a and (m == nil or a[2] < s or (a[2] == s and before(a[1], m))) then
    c.j = c.j + 1
    c.m, c.s = a[1], a[2]
  else
    c.m, c.s = m, s
    if m then c.i = c.i + 1 end
  end
end

-- A function that gives the next member, score and set of several sets read as one; nil at the end.
function walk(sets, first, page)
  local cursors = {}
  for i = 1, #sets do cursors[i] = cursor(sets[i], first, page) end
  if #cursors == 1 then
    local c = cursors[1]
    return function()
      step(c)
      return c.m, c.s, c.z
    end
  end
  local started, last = false, nil
  return function()
    if not started then
      for i = 1, #cursors do step(cursors[i]) end
      started = true
    elseif last then
      step(last)
    end
    last = nil
    for i = 1, #cursors do
      local c = cursors[i]
      if c.m and (not last or c.s < last.s or (c.s == last.s and before(c.m, last.m))) then last = c end
    end
    if last then return last.m, last.s, last.z end
  end
end

end
