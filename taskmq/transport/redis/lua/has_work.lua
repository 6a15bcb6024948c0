-- Whether a claim from these queues may find something, for `wait`. Reads only.
--
-- ARGV   queues
-- reply  {1, ""} if so, else {0, when the next thing falls due or ""}

-- @include commit

local MANY = 50
local names, next_due = {}, nil
for i = 3, #ARGV do names[#names + 1] = ARGV[i] end
if #names >= MANY then names = live_ones(names) end
load_queues(names, true)
for i = 1, #names do
  local q = Q[names[i]]
  if q.due then
    for k = 1, 4 do
      local _, at = zfirst(zq(q, DUE[k]))
      if at then
        if at <= now then return {1, ''} end
        next_due = min(next_due or at, at)
      end
    end
  end
  local at = next_start_at(q)
  if at then next_due = min(next_due or at, at) end
  if not q.paused and room(q) ~= 0 then
    local sets = of_specs(q, 'line')
    if q.flows > 0 then
      local turns = of_specs(q, 'turns')
      for k = 1, #turns do sets[#sets + 1] = turns[k] end
    end
    if q.limited then sets[#sets + 1] = zset(K('owing', q.name)) end
    for k = 1, #sets do
      if zfirst(sets[k]) then return {1, ''} end
    end
  end
end
return {0, next_due and I(next_due) or ''}
