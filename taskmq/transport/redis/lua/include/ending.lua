-- How tasks end, and how deliveries do: by a settle, or because their lease does. Twin of transport/memory/settle.py and
-- core.py; the essay on leases and blame is in policy/lease.py.
--
-- done:<q>  ZSET of ended tasks' ids by the end of their retention      dead:<q>  ZSET of dead letters by the time they died
-- leases:<q>  ZSET of "ref:hand" by the end of the lease
-- key:<len>:<q>:<key>  "id\ndigest\nend" of an idempotency key          keys:<q>  ZSET of the keys that have an end

-- @include line

local key_name, key_holder, hold_key, free_key, take_key, delete, finish, doom, log_attempt, lease_until, release, hand_back, reap, expire,
  finish_verb
do

local DAY = 86400000000
local MAX_BLAMED, MAX_EXPIRIES = 10, 100
local DIED = '"the worker died or froze: its lease ended"'
local FIRST, LAST = 5, 20 -- of a long history so many attempts stay
local HANDS = 10000 -- most leases looked at to find who was first in his batch

-- ── ends ──

function key_name(name, key) return K2('key', name, key) end

local held_keys -- what became of keys in this call; false: freed
fresh[#fresh + 1] = function() held_keys = {} end

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
  local set, m = zq(q, 'leases'), ref(t) .. ':' .. t.hand
  t.lease = till
  zadd(set, m, till)
  falls_due(q, till)
  change(t)
end

-- Out of the worker's hands.
function release(q, t, f)
  zrem(zq(q, 'leases'), ref(t) .. ':' .. t.hand)
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

-- A lost task, and everything behind it in its run: what ended is counted, the rest goes back unblamed.
local function lose(q, t, blamed)
  local f, run = flow(q, code(t)), {t}
  if f.ordered then
    for i = 1, #f.run do run[i] = task(ref_id(f.run[i][2])) end
  end
  local first = 1
  while run[first].lease > now do first = first + 1 end
  for i = #run, first, -1 do
    if run[i].lease > now then hand_back(q, run[i], f) end
  end
  for i = first, #run do
    if run[i].st == 'R' then count_expiry(q, run[i], f, blamed[run[i].id]) end
  end
  place(q, f)
end

-- Take back tasks whose lease is over; leases that end together are judged together. Returns how many ended.
function reap(q, most)
  if not q.due or q.due > now then return 0 end
  local set, ended, ids, batches = zq(q, 'leases'), {}, {}, {}
  local entries, last = walk({set}, 1, most), nil
  while true do
    local m, till = entries()
    if not m or till > now or (#ids >= most and till ~= last) then break end
    ids[#ids + 1] = sub(m, 12, -24)
    batches[sub(m, -22, -11)], last = true, till
  end
  if #ids == 0 then return 0 end
  load_tasks(ids)
  local blamed, firsts = {}, {}
  for i = 1, #ids do
    local t = task(ids[i])
    if t and t.st == 'R' then
      ended[#ended + 1] = t
      if t.started then blamed[t.id] = true end
    end
  end
  entries = walk({set}, BATCH, 1000)
  for _ = 1, HANDS do -- the first unsettled of each batch (in this queue) and of each run was started, we guess
    local m = entries()
    if not m then break end
    if batches[sub(m, -22, -11)] then
      local group, position = sub(m, -22, -6), tonumber(sub(m, -5))
      if not firsts[group] or position < firsts[group][1] then firsts[group] = {position, sub(m, 12, -24)} end
    end
  end
  for _, first in pairs(firsts) do blamed[first[2]] = true end
  for i = 1, #ended do
    if ended[i].st == 'R' then lose(q, ended[i], blamed) end
  end
  return #ids
end

-- End waiting tasks that were not started in time; they take no turn. Returns how many.
function expire(q, most)
  if not q.due or q.due > now then return 0 end
  local set, done = zq(q, 'expiring'), 0
  while done < most do
    local m, at = zfirst(set, done == 0 and 1 or most)
    if not m or at > now then break end
    local t = task(ref_id(m))
    local f = flow(q, code(t))
    local in_flow = t.st ~= 'D'
    drop(q, t, f)
    finish(q, t, 'E')
    if in_flow then place(q, f) end
    done = done + 1
  end
  return done
end

-- What every verb does last to a queue it touched.
function finish_verb(q)
  look_for_missed(q)
  if q.due and q.due <= now then look_again(q) end
end

end
