-- Named leases.
--
-- ARGV   3 "lock" or "unlock", 4 name, 5 owner, 6 for how long
-- reply  1: it is the owner's; 0: somebody else's

-- @include base

local key = H .. 'lock:' .. ARGV[4]
local held = redis.call('GET', key)
local till, owner
if held then till, owner = match(held, '^(%d+)\n(.*)$') end
if ARGV[3] == 'unlock' then
  if owner == ARGV[5] then write('DEL', key) end
  send()
  return 1
end
if held and owner ~= ARGV[5] and tonumber(till) > now then return 0 end
write('SET', key, I(now + ARGV[6]) .. '\n' .. ARGV[5])
send()
return 1
