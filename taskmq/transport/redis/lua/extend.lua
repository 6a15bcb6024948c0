-- Extend: renews leases and marks what is started.
--
-- ARGV   for each delivery: id, "epoch,lease,started", progress (JSON or "")
-- reply  for each: "" when the lease is lost, else "<lease end>,<1 if a cancel is requested>"

-- @include commit

local ids = {}
for i = 3, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
load_tasks(ids)
local names, seen = {}, {}
for i = 1, #ids do
  local t = task(ids[i])
  if t and not seen[t.x.q] then
    seen[t.x.q] = true
    names[#names + 1] = t.x.q
  end
end
load_queues(names)

local out = {}
for i = 1, #ids do
  local t = task(ids[i])
  local epoch, lease, started = match(ARGV[3 * i + 1], '^(%d+),(%d+),(%d)$')
  if t and t.st == 'R' and t.epoch == tonumber(epoch) then
    local q = Q[t.x.q]
    if started == '1' and not t.started then t.started, t.started_at = true, now end
    lease_until(q, t, now + lease)
    if ARGV[3 * i + 2] ~= '' then t.progress = ARGV[3 * i + 2] end
    out[i] = I(t.lease) .. (t.cancel and ',1' or ',0')
  else
    out[i] = ''
  end
end
commit()
return out
