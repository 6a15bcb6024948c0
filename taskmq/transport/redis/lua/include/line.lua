-- Moves between the places where a task waits. Twin of records.py, QueueRecord.
--
-- delayed:<q>   ZSET ref by available_at: due later        retries:<q>  ZSET ref by retry_at: aside until then
-- inplace:<q>   ZSET ref by retry_at: waits in its line or parked, and shows as RETRYING until then
-- expiring:<q>  ZSET ref by expires_at, wherever it waits
-- counts:<q>    HASH: r<priority> in line or parked, h<spec> unfinished

-- @include flow

local in_place, stand, wait_until, park, enter, leave, drop, look_for_missed, promote, return_parked
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

-- Wait outside the line for a slot of its limit; an ordered partition waits with it.
function park(q, t, f)
  t.st = 'P'
  if not f.plain then
    f.aside = f.aside + 1
    touch(q, f)
  end
  if f.ordered then add_parked(q, f, score(q, t), lm(t)) end
  park_limit(q, t, f.weight)
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
  q.stopped = {}
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

local promoted -- by this call
fresh[#fresh + 1] = function() promoted = 0 end

-- Let what is due by now enter its line or free its flow, in order of due time, then seq; returns how many did.
function promote(q, most)
  most = min(most or BATCH, BATCH - promoted)
  if most == 0 or not q.due or q.due > now then return 0 end
  local delayed, retries, blocks = zq(q, 'delayed'), zq(q, 'retries'), zq(q, 'blocks')
  local entries, done, ids, due = walk({delayed, retries, blocks}, 1, most), 0, {}, {}
  while done < most do
    local m, s, z = entries()
    if not m or s > now then break end
    done = done + 1
    due[done] = {m, z}
    promoted = promoted + 1
    if z ~= blocks then ids[#ids + 1] = ref_id(m) end
  end
  load_tasks(ids)
  local codes = {}
  for i = 1, #ids do
    local t = task(ids[i])
    if t then codes[#codes + 1] = code(t) end
  end
  load_flows(q, codes)
  for i = 1, done do
    local m, z = due[i][1], due[i][2]
    zrem(z, m)
    if z == blocks then
      local f = flow(q, sub(m, 9))
      f.blocked, f.bseq = nil, nil
      touch(q, f)
      place(q, f)
    else
      local t = task(ref_id(m))
      if t then
        if t.c.e then zrem(zq(q, 'expiring'), m) end
        if z == retries then
          local f = flow(q, code(t))
          if not f.plain then
            f.aside = f.aside - 1
            touch(q, f)
          end
        end
        enter(q, t)
      end
    end
  end
  return done
end

-- Put parked tasks that are owed a return back in their places, by their limits' keys; returns how many moved.
function return_parked(q, most)
  if not q.limited then return 0 end
  local moved, owing = 0, owing_lines(q)
  for i = 1, #owing do
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
