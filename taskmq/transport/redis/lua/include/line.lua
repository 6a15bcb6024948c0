-- Moves between the places where a task waits. Twin of records.py, QueueRecord.
--
-- delayed:<q>   ZSET ref by available_at: due later        retries:<q>  ZSET ref by retry_at: aside until then
-- inplace:<q>   ZSET ref by retry_at: waits in its line or parked, and shows as RETRYING until then
-- expiring:<q>  ZSET ref by expires_at, wherever it waits
-- counts:<q>    HASH: r<priority> in line or parked, h<spec> unfinished

-- @include flow

local in_place, stand, wait_until, wait_for_slot, park, enter, leave, drop, look_for_missed, promote, return_parked
do

local LOOK = 100 -- how far into the line of a partition that stopped one looks for tasks with a limit

local function line_of(q, t, f)
  if f.plain then return lane(q, t.spec) end
  return f.line
end

local function watch_expiry(q, t)
  if t.c.e then
    zadd(zq(q, 'expiring'), ref(t), t.c.e)
    falls_due(q, t.c.e)
  end
end

function in_place(q, t)
  count(q, 'r' .. t.prio, 1)
  t.worker, t.started_at = '', nil
  if t.c.r and t.c.r > now then zadd(zq(q, 'inplace'), ref(t), t.c.r) end
  watch_expiry(q, t)
  change(t)
end

local function out_of_place(q, t)
  count(q, 'r' .. t.prio, -1)
  if t.c.r then zrem(zq(q, 'inplace'), ref(t)) end
end

-- Stand in line, without any change to the flow's standing yet.
function stand(q, t, f)
  t.st = 'W'
  zadd(line_of(q, t, f), lm(t), score(q, t))
  enliven(q)
  if not f.ordered then wake(q.name, 1) end
  in_place(q, t)
end

-- Wait outside the line: for the first time (D) or for a retry (A).
function wait_until(q, t, st, due)
  t.st, t.worker, t.started_at = st, '', nil
  zadd(zq(q, st == 'D' and 'delayed' or 'retries'), ref(t), due)
  falls_due(q, due)
  watch_expiry(q, t)
  change(t)
end

-- Wait outside the line for a slot of a limit; an ordered partition waits with it. m, s: the place in the line.
function wait_for_slot(q, f, m, s, key, n)
  if not f.plain then
    f.aside = f.aside + 1
    touch(q, f)
  end
  if f.ordered then add_parked(q, f, s, m) end
  park_limit(q, m, s, key, n, f.code, f.weight)
end

function park(q, t, f)
  t.st = 'P'
  wait_for_slot(q, f, lm(t), score(q, t), limit_of(t))
  in_place(q, t)
end

local function unpark(q, t, f)
  if not f.plain then
    f.aside = f.aside - 1
    touch(q, f)
  end
  if f.ordered then drop_parked(q, f, lm(t)) end
  unpark_limit(q, t)
end

-- A task becomes claimable: it enters its line where its key puts it.
function enter(q, t)
  local f = born(q, code(t))
  if not f.plain then
    if t.c.w and t.c.w ~= f.weight then f.weight = t.c.w; touch(q, f) end
    if t.c.n and t.c.n ~= f.max then f.max = t.c.n; touch(q, f) end
  end
  local key, n = limit_of(t)
  if key then
    if not q.limited then q.limited, q.dirty = true, true end
    if not f.ordered and free(key, n) <= 0 then
      park(q, t, f)
      return place(q, f)
    end
  end
  if f.ordered and f.live and q.limited then
    local m, s = zfirst(f.line)
    if keyed(q, lm_spec(m)) and stands_before(score(q, t), lm(t), s, m) then missed(q, task(ref_id(m))) end
  end
  stand(q, t, f)
  place(q, f)
end

-- Take a waiting task out of wherever it waits.
function leave(q, t, f)
  if t.c.e then zrem(zq(q, 'expiring'), ref(t)) end
  if t.st == 'W' then
    zrem(line_of(q, t, f), lm(t))
    out_of_place(q, t)
  elseif t.st == 'P' then
    unpark(q, t, f)
    out_of_place(q, t)
  elseif t.st == 'D' then
    zrem(zq(q, 'delayed'), ref(t))
  else
    zrem(zq(q, 'retries'), ref(t))
    if not f.plain then
      f.aside = f.aside - 1
      touch(q, f)
    end
  end
end

-- Take a waiting task out for good: it is cancelled, expired or skipped.
function drop(q, t, f)
  local stood = t.st == 'W'
  leave(q, t, f)
  if stood then missed(q, t) end
  if f.ordered and f.blocked and f.bseq == t.seqx then unblock(q, f) end -- its delay ends with it
end

-- At the end of a verb: flows that it stopped or filled cannot use the slots their first tasks stood for.
function look_for_missed(q)
  local list = q.stopped
  if #list == 0 then return end
  q.stopped = NONE
  if not q.limited then return end
  for i = 1, #list do
    local f = list[i]
    if not f.live and f.exists then
      local entries, ids = walk(f.plain and of_specs(q, 'line') or {f.line}, LOOK, LOOK), {}
      for _ = 1, LOOK do
        local m = entries()
        if not m then break end
        if keyed(q, lm_spec(m)) then ids[#ids + 1] = ref_id(m) end
      end
      load_tasks(ids)
      for k = 1, #ids do missed(q, task(ids[k])) end
    end
  end
end

local effort -- what this call has spent on promotion: 1 for a task, 2 if it has a partition or a limit
fresh[#fresh + 1] = function() effort = 0 end

-- The next of what is due, at most k; with their tasks and flows read.
local function due_page(q, entries, blocks, k)
  local page, ids = {}, {}
  while #page < k do
    local m, s, z = entries()
    if not m or s > now then break end
    page[#page + 1] = {m, z}
    if z ~= blocks then ids[#ids + 1] = ref_id(m) end
  end
  load_with_flows(q, ids)
  return page
end

local function enter_due(q, t, m, aside)
  local f = flow(q, code(t))
  if t.c.e then zrem(zq(q, 'expiring'), m) end
  if aside and not f.plain then
    f.aside = f.aside - 1
    touch(q, f)
  end
  enter(q, t)
  effort = effort + ((not f.plain or t.x.l) and 2 or 1)
end

local function free_due(q, f)
  f.blocked, f.bseq = nil, nil
  touch(q, f)
  place(q, f)
  effort = effort + 2
end

-- Let what is due by now enter its line or free its flow, in order of due time, then seq. Returns how many did, and whether
-- there may be more.
function promote(q, most)
  most = most or BATCH
  if not q.due or q.due > now then return 0, false end
  if effort >= BATCH then return 0, true end
  local delayed, retries, blocks = zq(q, 'delayed'), zq(q, 'retries'), zq(q, 'blocks')
  local entries, done = walk({delayed, retries, blocks}, 1, HALF), 0
  while done < most and effort < BATCH do
    local asked = min(HALF, most - done)
    local page = due_page(q, entries, blocks, asked)
    for i = 1, #page do
      local m, z = page[i][1], page[i][2]
      local t = z ~= blocks and task(ref_id(m))
      zrem(z, m)
      if z == blocks then
        free_due(q, flow(q, sub(m, 9)))
      elseif t then
        enter_due(q, t, m, z == retries)
      end
    end
    done = done + #page
    if #page < asked then return done, false end
  end
  return done, true
end

-- Put parked tasks that are owed a return back in their places, by their limits' keys; returns how many moved.
function return_parked(q, most)
  if not q.limited then return 0 end
  local moved, owing = 0, owing_lines(q)
  for i = 1, #owing do
    load_with_flows(q, owed_ids(q, owing[i], most - moved))
    while moved < most do
      local m = first_owed(q, owing[i])
      if not m then break end
      local t = task(ref_id(m))
      local f = flow(q, code(t))
      leave(q, t, f)
      stand(q, t, f)
      place(q, f)
      moved = moved + 1
      -- Where it cannot take the slot, the next one returns, too.
      if f.plain or (f.live and not (f.ordered and zfirst(f.line) ~= m)) then returned(q, owing[i]) end
    end
  end
  return moved
end

end
