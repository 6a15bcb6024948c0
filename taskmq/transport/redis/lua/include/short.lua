-- The short way: the moves that nearly every task makes – claimed from the line, ended with success – as one text made from
-- another. Without it a claim or settle of 100 holds the server for 10 µs of Lua a task, with it for 3 to 5.
--
-- It is for tasks of which nothing else is written down: no partition, limit, key, expiry or retry. All others, and all that
-- was taken apart already, take the long way (claim.lua, ending.lua), which says the same; random programs hold both to it.

-- @include commit

local claim_line, ack_shortly
do

-- spot (priority, seq, spec), epoch, attempts, where line 2 begins
local WAITING = '^W(...........),(%d+),(%d+),,[^,]*,[01],[^\n]*\n()c[^\ner]*\n[^\n]*\n\n'
-- priority, seq, spec, epoch, attempts, hand, flags, started_at, worker, lines 2, 3, 4, where the body begins
local RUNNING = '^R(.)(........)(..),(%d+),(%d+),%d+,([^,]*),(%d,)(%d*),([^\n]*\n)(c[^\nfkz]*)\n([^\n]*)\n([^\n]*\n)[^\n]*\n()'
local MOST = 1000
local end_of, kept_for, end_text -- a batch ends at one time

-- A member of a line as sets of times have it.
local function ref_of(m) return sub(m, 2, 9) .. sub(m, 1, 1) .. sub(m, 10) end

-- The first n members of a line of unpartitioned tasks.
local function first_members(q, n)
  if #q.specs == 1 then
    local z = lane(q, 1)
    zload(z, n)
    return z.m
  end
  local entries, members = walk(of_specs(q, 'line'), n, n), {}
  for i = 1, n do
    local m = entries()
    if not m then break end
    members[i] = m
  end
  return members
end

-- Claims the next n tasks of a queue that has nothing but a line: no partitions, no limits, nothing due. What it answers is
-- the reply; nil: this is no such queue, or not all of them are such tasks, or there are none.
-- plan: what was chosen among the queues of a cluster (reserve.lua).
function claim_line(q, n, worker, batch, default_lease, plan)
  if plan then n = plan.heads end
  if q.flows > 0 or q.limited or q.paused or q.born or n > MOST or #q.specs == 0 or (q.due and q.due <= now) then return nil end
  local most = room(q)
  if most and most < n then n = most end
  if n == 0 then return nil end
  local members = first_members(q, n)
  n = min(n, #members)
  if n == 0 then return nil end
  local ids = {}
  for i = 1, n do ids[i] = sub(members[i], 12) end
  load_tasks(ids)
  local lease = q.lease or default_lease
  local till, records = I(now + lease), {}
  local behind = ',0,,' .. worker .. '\n'
  for i = 1, n do
    local rec = raw[ids[i]]
    local spot, epoch, attempts, at
    if rec then spot, epoch, attempts, at = match(rec, WAITING) end
    if not spot then return nil end
    records[i] = 'R' .. spot .. ',' .. epoch + 1 .. ',' .. attempts .. ',' .. till .. ',' .. batch .. '00000'
      .. format('%05d', i) .. behind .. sub(rec, at)
  end

  local out = {'0', '', q.name, I(lease), q.aging > 0 and '1' or '0', ''}
  local gone, leases = {}, {'ZADD', K('leases', q.name)}
  for i = 1, n do
    local m, id = members[i], ids[i]
    out[5 + 2 * i], out[6 + 2 * i] = records[i], id
    sets[2 * i], sets[2 * i + 1] = H .. 't:' .. id, records[i]
    leases[1 + 2 * i], leases[2 + 2 * i] = till, batch .. '00000' .. format('%05d', i) .. ':' .. ref_of(m)
    local spec = sub(m, 10, 11)
    local from = gone[spec]
    if not from then
      from = {'ZREM', K('line:' .. number(spec), q.name)}
      gone[spec] = from
    end
    from[#from + 1] = m
    count(q, 'r' .. sub(m, 1, 1), -1)
  end
  for _, from in pairs(gone) do W[#W + 1] = from end
  W[#W + 1] = leases
  q.served, q.served_on = plan and served_by(plan, q.served, n) or q.served + n, true
  count_starts(q, n)
  falls_due(q, now + lease)
  commit()
  return out
end

-- Ends a task with success; its epoch is right. True: that was done; else it takes the long way. outcome: "" or its result.
function ack_shortly(id, epoch, ago, outcome)
  local rec = T[id] == nil and raw[id]
  if not rec then return false end
  local prio, seqx, specx, had, attempts, hand, flags, started_at, worker, cold, texts, progress, at = match(rec, RUNNING)
  if had ~= epoch then return false end
  local x = texts_in(texts)
  if x.p or x.l then return false end
  local retention = tonumber(match(cold, 't(%d+)') or DAY)
  if retention == 0 then return false end
  local q, till = queue(x.q), now + retention
  if end_of ~= now or kept_for ~= retention then
    end_of, kept_for, end_text = now, retention, 'f' .. I(now) .. 'z' .. I(till) .. '\n'
  end
  local text = 'S' .. prio .. seqx .. specx .. ',' .. epoch .. ',' .. attempts + 1 .. ',,' .. hand .. ',' .. flags
    .. (ago == '' and started_at or I(now - ago)) .. ',' .. worker .. cold .. end_text
    .. texts .. '\n' .. progress .. outcome .. '\n' .. sub(rec, at)
  raw[id] = text
  local n = #sets
  sets[n + 1], sets[n + 2] = H .. 't:' .. id, text
  zrem(zq(q, 'leases'), hand .. ':' .. seqx .. prio .. specx .. id)
  zadd(zq(q, 'done'), id, till)
  count(q, 'h' .. number(specx), -1)
  q.started = q.started - 1
  if q.max_running then wake(q.name, 1) end
  place(q, q.plain)
  return true
end

end
