-- Settings of queues: seeds those that were never configured, or overwrites; or pauses and resumes one; or changes one, if
-- it still is as somebody read it.
--
-- ARGV   3 "seed", "overwrite", "pause", "resume" or "change", then for each queue: name, conf (queue.lua; "" for pause and
--        resume); and for "change" the conf that was read
-- reply  for each the conf that was there, "" when there was none; "change": {"1"}, or {"0"}: it is not as it was read

-- @include commit

local out = {}
if ARGV[3] == 'change' and (queue(ARGV[4]).conf or '') ~= ARGV[6] then return {'0'} end
for i = 4, ARGV[3] == 'change' and 5 or #ARGV, 2 do
  local q = queue(ARGV[i])
  local old, conf = q.conf or '', ARGV[i + 1]
  local set_before = match(old, '\n(.)') ~= nil
  if ARGV[3] == 'pause' or ARGV[3] == 'resume' then
    if old == '' then old = '0,,,,,0,,,,\n' end
    conf = (ARGV[3] == 'pause' and '1' or '0') .. sub(old, 2)
  elseif ARGV[3] == 'seed' and set_before then
    conf = nil
  else
    local count, cost, burst = match(conf, '^[^\n]*,(%d*),(%d*),(%d*)\n')
    if tonumber(count) ~= q.count or tonumber(cost) ~= q.cost or tonumber(burst) ~= q.burst then
      take_service(q, redis.call('GET', K('served', q.name)))
      q.level, q.level_at, q.served_on = nil, nil, true -- a new rate starts with a full bucket
    end
  end
  if conf then write('SET', K('conf', q.name), conf) end
  wake(q.name, math.huge) -- all who wait
  out[#out + 1] = set_before and old or ''
end
commit()
return ARGV[3] == 'change' and {'1'} or out
