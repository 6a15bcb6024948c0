-- How tasks end, and how deliveries do: by a settle, or because their lease does. Twin of transport/memory/settle.py and
-- core.py; the essay on leases and blame is in policy/lease.py.
--
-- done:<q>  ZSET of ended tasks' ids by the end of their retention      dead:<q>  ZSET of dead letters by the time they died
-- leases:<q>  ZSET of "hand:ref" by the end of the lease: what was claimed together and ends together stands together
-- key:<len>:<q>:<key>  "id\ndigest\nend" of an idempotency key          keys:<q>  ZSET of the keys that have an end

-- @include line

local DAY = 86400000000 -- how long a success is kept if nothing else was said
local key_name, key_holder, hold_key, free_key, take_key, delete, finish, doom, log_attempt, lease_until, release, hand_back, reap, expire,
  finish_verb
do

local MAX_BLAMED, MAX_EXPIRIES = 10, 100
local DIED = '"the worker died or froze: its lease ended"'
local FIRST, LAST = 5, 20 -- of a long history so many attempts stay
local HANDS = 500 -- how many leases beyond those that ended are looked at to find who was first in his batch

-- ── ends ──

function key_name(name, key) return K2('key', name, key) end

local held_keys -- what became of keys in this call; false: freed
held_keys = {}
fresh[#fresh + 1] = function()
  if next(held_keys) then held_keys = {} end
end

-- Who holds a key, the digest of its content, and when it ends; the holder is nil when it has ended.
function key_holder(name)
  local held = held_keys[name]
  if held == nil then held = redis.call('GET', name) end
  if not held then return nil end
  local id, digest, till = match(held, '^([^\n]*)\n([^\n]*)\n(%d*)$')
  till = tonumber(till)
  if till and till <= now then id = nil end
  return id, digest, till
end

function hold_key(q, key, id, digest, till)
  local name = key_name(q.name, key)
  local _, _, had = key_holder(name)
  held_keys[name] = id .. '\n' .. digest .. '\n' .. (till and I(till) or '')
  write('SET', name, held_keys[name])
  if till then
    zadd(zq(q, 'keys'), key, till)
  elseif had then
    zrem(zq(q, 'keys'), key)
  end
end

-- Free its key; a key with a life of its own outlives the record. The digest stays with the task: it may be replayed.
function free_key(t, gone)
  local key = t.x.k
  if not key or (gone and t.c.k == 2) then return end
  local name = key_name(t.x.q, key)
  local id, digest = key_holder(name)
  if id == t.id then
    held_keys[name] = false
    write('DEL', name)
    set_text(t, 'd', digest)
  end
end

-- One key, one task: a revived one has its key again, unless another task has taken it meanwhile.
function take_key(q, t)
  local digest = t.x.d
  if digest and t.c.k ~= 2 and not key_holder(key_name(q.name, t.x.k)) then
    hold_key(q, t.x.k, t.id, digest)
    set_text(t, 'd', nil)
  end
end

function delete(q, t)
  t.deleted = true
  change(t)
  zrem(zq(q, 'done'), t.id)
  if t.st == 'F' then zrem(zq(q, 'dead'), t.id) end
  free_key(t, true)
end

function finish(q, t, state, outcome)
  t.st = state
  set(t, 'f', now)
  local retention = t.c.t or (state == 'S' and DAY or 7 * DAY)
  set(t, 'z', now + retention)
  if outcome then t.outcome = outcome end
  count(q, 'h' .. t.spec, -1)
  if t.c.k == 1 then free_key(t) end
  zadd(zq(q, 'done'), t.id, t.c.z)
  if state == 'F' then zadd(zq(q, 'dead'), t.id, now) end
  change(t)
  if t.c.z <= now then delete(q, t) end
end

-- How a task ends that comes back without success, if it was cancelled or its deadline is over.
function doom(t)
  if t.cancel then return 'C' end
  if t.c.d and t.c.d <= now then return 'E' end
end

-- ── failed attempts ──

function log_attempt(t, kind, err, tb)
  local log = t.log
  if log == nil then log = redis.call('GET', H .. 'log:' .. t.id) or '' end
  local lines = {}
  for line in gmatch(log, '[^\n]+') do lines[#lines + 1] = line end
  local newest = lines[#lines]
  if newest then
    local from = string.find(newest, ',"traceback":', 1, true)
    if from then lines[#lines] = sub(newest, 1, from - 1) .. '}' end
  end
  lines[#lines + 1] = '{"attempt":' .. I(t.attempts) .. ',"epoch":' .. I(t.epoch) .. ',"ended_at":' .. I(now)
    .. ',"outcome":"' .. kind .. '"' .. (t.started_at and ',"started_at":' .. I(t.started_at) or '')
    .. (t.worker ~= '' and ',"worker":' .. t.worker or '') .. (err ~= '' and ',"error":' .. err or '')
    .. (tb ~= '' and ',"traceback":' .. tb or '') .. '}'
  if #lines > FIRST + LAST then table.remove(lines, FIRST + 1) end
  t.log = concat(lines, '\n')
  t.logged = true
  change(t)
end

-- ── deliveries ──

function lease_until(q, t, till)
  local set, m = zq(q, 'leases'), t.hand .. ':' .. ref(t)
  t.lease = till
  zadd(set, m, till)
  falls_due(q, till)
  change(t)
end

-- Out of the worker's hands.
function release(q, t, f)
  zrem(zq(q, 'leases'), t.hand .. ':' .. ref(t))
  t.lease = nil
  q.started = q.started - 1
  if not f.plain then
    run_drop(f, lm(t))
    touch(q, f)
  end
  if q.max_running then wake(q.name, 1) end
  local key = limit_of(t)
  if key then release_limit(key) end
  change(t)
end

-- Back in its place, unblamed.
function hand_back(q, t, f)
  release(q, t, f)
  local end_state = doom(t)
  if end_state then
    finish(q, t, end_state)
  else
    stand(q, t, f)
  end
end

-- ── ended leases ──

local function count_expiry(q, t, f, blamed)
  release(q, t, f)
  set(t, 'x', (t.c.x or 0) + 1)
  if blamed then
    set(t, 'b', (t.c.b or 0) + 1)
    t.attempts = t.attempts + 1
    set(t, 'e', t.c.d)
    log_attempt(t, 'lease expired', '', '')
  end
  local reason
  if t.attempts >= (t.c.m or 3) then
    reason = '"max_attempts"'
  elseif (t.c.b or 0) >= MAX_BLAMED or t.c.x >= MAX_EXPIRIES then
    reason = '"poison"'
  end
  local end_state = doom(t)
  if end_state then
    finish(q, t, end_state)
  elseif reason then
    if f.ordered and q.hold then f.held = t.id end
    finish(q, t, 'F', '"reason":' .. reason .. ',"error":' .. DIED)
  else
    stand(q, t, f)
  end
end

-- A lost task, and everything behind it in its run: what ended is counted, the rest goes back unblamed. Of a long run only
-- the last ones: the partition waits until all are back. Returns whether this task is among them.
local function lose(q, t, blamed)
  local f, ids, among = flow(q, code(t)), {t.id}, true
  if f.ordered then
    local skipped = max(0, #f.run - HALF)
    among = false
    for i = skipped + 1, #f.run do
      ids[i - skipped] = ref_id(f.run[i][2])
      among = among or ids[i - skipped] == t.id
    end
  end
  load_tasks(ids)
  local first = 1
  while among and task(ids[first]).lease > now do first = first + 1 end
  for i = #ids, first, -1 do
    if task(ids[i]).lease > now then hand_back(q, task(ids[i]), f) end
  end
  for i = first, #ids do
    local mate = task(ids[i])
    if mate.st == 'R' then count_expiry(q, mate, f, blamed[mate.id]) end
  end
  place(q, f)
  return among
end

-- A lease's group: of one batch the lone tasks, or one run.
local function group_of(m) return sub(m, 1, 17) end

-- The first leases that have ended, as {member, end}: `most`, and others that end with the last of them; and whether there
-- may be more. What ends together is judged together, because the first of a group is blamed: a group that is too long for
-- this call waits for the next one. If it is longer than a call can do, its others come first and go back unblamed.
local function ended_leases(q, most)
  local page, n = {}, 0
  local entries, last = walk({zq(q, 'leases')}, 1, HALF + 1), nil
  local m, till = entries()
  while m and till <= now and n < HALF and (n < most or till == last) do
    n, last = n + 1, till
    page[n] = {m, till}
    m, till = entries()
  end
  if not m or till > now then return page, false end
  local group = group_of(m)
  if till == last and group == group_of(page[n][1]) then
    local k = n
    while k > 0 and group_of(page[k][1]) == group do k = k - 1 end
    if k > 0 then
      for i = n, k + 1, -1 do page[i] = nil end
    elseif sub(group, -5) == '00000' then
      table.remove(page, 1)
    else
      page = {page[1]} -- of a run `lose` takes the last ones
    end
  end
  return page, true
end

-- Who was the first unsettled one of each group, we guess, was started. Ids, as keys.
local function first_ones(q, page)
  local firsts, blamed = {}, {}
  for i = 1, #page do firsts[group_of(page[i][1])] = 100000 end
  local leases = redis.call('ZRANGE', K('leases', q.name), 0, #page + HANDS)
  local ids = {}
  for i = 1, #leases do
    local m = leases[i]
    local group = group_of(m)
    local first = firsts[group]
    if first then
      local position = tonumber(sub(m, 18, 22))
      if position < first then firsts[group], ids[group] = position, sub(m, 35) end
    end
  end
  for _, id in pairs(ids) do blamed[id] = true end
  return blamed
end

-- Take back tasks whose lease is over. Returns how many ended, and whether there may be more.
function reap(q, most)
  if not q.due or q.due > now then return 0, false end
  local page, more = ended_leases(q, most)
  if #page == 0 then return 0, more end
  local blamed, ids = first_ones(q, page), {}
  table.sort(page, function(a, b) return stands_before(a[2], sub(a[1], 24), b[2], sub(b[1], 24)) end) -- by end, then seq
  for i = 1, #page do ids[i] = sub(page[i][1], 35) end
  load_with_flows(q, ids)
  for i = 1, #ids do
    local t = task(ids[i])
    if t and t.started then blamed[t.id] = true end
  end
  for i = 1, #ids do
    local t = task(ids[i])
    if not t then -- somebody has deleted its record
      zrem(zq(q, 'leases'), page[i][1])
    elseif t.st == 'R' and not lose(q, t, blamed) then
      more = true
    end
  end
  return #ids, more
end

-- End waiting tasks that were not started in time; they take no turn. Returns how many, and whether there may be more.
function expire(q, most)
  if not q.due or q.due > now then return 0, false end
  most = min(most, HALF)
  local set, late, ids = zq(q, 'expiring'), {}, {}
  local entries = walk({set}, 1, most)
  while #late < most do
    local m, at = entries()
    if not m or at > now then break end
    late[#late + 1], ids[#ids + 1] = m, ref_id(m)
  end
  load_with_flows(q, ids)
  for i = 1, #late do
    local t = task(ids[i])
    if t then
      local f, in_flow = flow(q, code(t)), t.st ~= 'D'
      drop(q, t, f)
      finish(q, t, 'E')
      if in_flow then place(q, f) end
    else -- somebody has deleted its record
      zrem(set, late[i])
    end
  end
  return #late, #late == most
end

-- What every verb does last to a queue it touched.
function finish_verb(q)
  look_for_missed(q)
  if q.due and q.due <= now then look_again(q) end
end

end
