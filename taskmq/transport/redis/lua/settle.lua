-- Settle: ends deliveries, one after another.
--
-- ARGV   3 number of queues, then their names; then for each delivery: "kind,queue's index,epoch,started_ago", id, and
--          A ack: –            a ack: result
--          r retry: "delay,whole", error, traceback         d defer: "delay,whole"         y yield: –
--          x dead: reason, error, traceback                 (all texts JSON or "")
-- reply  "1" or "0" (the lease was lost) for each, in one string

-- @include commit
-- @include short

local ARGS = {A = 0, a = 1, r = 3, d = 1, y = 0, x = 3}

-- Retry or defer: an ordered partition waits in place; otherwise the task waits aside.
local function put_off(q, t, f, delay, whole)
  local due = now + delay
  set(t, 'r', delay > 0 and due or nil)
  set(t, 'e', t.c.d) -- it was started in time
  if not f.ordered then set(t, 'a', due) end
  if f.ordered or (whole and not f.plain) then
    stand(q, t, f)
    if delay > 0 then block(q, f, due, t.seqx) end
  elseif delay > 0 then
    if not f.plain then f.aside = f.aside + 1 end
    wait_until(q, t, 'A', due)
  else
    enter(q, t)
  end
end

-- a: where the arguments of its kind begin.
local function settle(t, kind, ago, ARGV, a)
  local q = queue(t.x.q)
  local f = flow(q, code(t))
  if f.ordered and f.run[1][2] ~= lm(t) and kind ~= 'y' then return '0' end -- as stale as an old epoch
  if ago ~= '' then t.started_at = now - ago end
  local acked = kind == 'A' or kind == 'a'
  if kind ~= 'd' and kind ~= 'y' then t.attempts = t.attempts + 1 end
  if kind == 'r' then log_attempt(t, 'retry', ARGV[a + 1], ARGV[a + 2]) end
  if kind == 'x' then log_attempt(t, 'dead', ARGV[a + 1], ARGV[a + 2]) end
  local doomed = not acked and doom(t)
  local held = kind == 'x' and f.ordered and q.hold and not doomed
  if f.ordered and (held or kind == 'r' or kind == 'd' or kind == 'y') then
    local m, run = lm(t), {}
    for i = #f.run, 1, -1 do
      if f.run[i][2] == m then break end
      run[#run + 1] = task(ref_id(f.run[i][2]))
    end
    for i = 1, #run do hand_back(q, run[i], f) end
  end
  release(q, t, f)
  if acked then
    finish(q, t, 'S', kind == 'a' and '"result":' .. ARGV[a] or '')
  elseif doomed then
    finish(q, t, doomed)
  elseif kind == 'x' then
    if held then f.held = t.id end
    finish(q, t, 'F', '"reason":' .. ARGV[a] .. (ARGV[a + 1] ~= '' and ',"error":' .. ARGV[a + 1] or '')
      .. (ARGV[a + 2] ~= '' and ',"traceback":' .. ARGV[a + 2] or ''))
  elseif kind == 'y' then
    stand(q, t, f)
  else
    local delay, whole = match(ARGV[a], '^(%d+),(%d)$')
    put_off(q, t, f, tonumber(delay), whole == '1')
  end
  place(q, f)
  return '1'
end

-- Read the flows of these tasks together; of a queue that knows no partition, or a record without one, there is none.
local function load_flows_of(ids)
  local codes = {}
  for i = 1, #ids do
    local t = raw[ids[i]] and string.find(raw[ids[i]], '\tp', 1, true) and task(ids[i])
    if t and t.x.p then
      codes[t.x.q] = codes[t.x.q] or {}
      codes[t.x.q][#codes[t.x.q] + 1] = t.x.p
    end
  end
  for name, list in pairs(codes) do load_flows(queue(name), list) end
end

-- @body

local at, names, ids, ats, n = 4 + ARGV[3], {}, {}, {}, 0
for i = 4, at - 1 do names[i - 3] = ARGV[i] end
load_queues(names)
while ARGV[at] do
  n = n + 1
  ids[n], ats[n] = ARGV[at + 1], at
  at = at + 2 + ARGS[sub(ARGV[at], 1, 1)]
end
local flows = false
for i = 1, #names do
  local q = Q[names[i]]
  promote(q)
  flows = flows or q.flows > 0
end
load_tasks(ids)
if flows then load_flows_of(ids) end

local out = {}
for i = 1, n do
  local id, a = ids[i], ats[i] + 2
  local kind, epoch, ago = match(ARGV[a - 2], '^(.),%d+,(%d+),(%d*)$')
  if (kind == 'A' or kind == 'a') and rest.ack(id, epoch, ago, kind == 'a' and '"result":' .. ARGV[a] or '') then
    out[i] = '1'
  else
    local t = task(id)
    if t and t.st == 'R' and t.epoch == tonumber(epoch) then out[i] = settle(t, kind, ago, ARGV, a) else out[i] = '0' end
  end
end
for i = 1, #QN do finish_verb(QN[i]) end
commit()
return concat(out)
