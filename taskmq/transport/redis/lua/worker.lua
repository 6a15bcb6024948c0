-- The worker table.
--
-- ARGV   3 "heartbeat", 4 id, 5 row (JSON), 6 for how long; or "forget", id; or "list"
-- reply  list: for each live worker "seen_at" and its row, ordered by id
-- workers  HASH id → "end,seen_at\n<JSON>"

-- @include base

local key = H .. 'workers'
if ARGV[3] == 'heartbeat' then
  write('HSET', key, ARGV[4], I(now + ARGV[6]) .. ',' .. I(now) .. '\n' .. ARGV[5])
  send()
  return {}
end
if ARGV[3] == 'forget' then
  write('HDEL', key, ARGV[4])
  send()
  return {}
end
local rows, out = redis.call('HGETALL', key), {}
for i = 1, #rows, 2 do
  local till, seen, row = match(rows[i + 1], '^(%d+),(%d+)\n(.*)$')
  if tonumber(till) > now then
    out[#out + 1], out[#out + 2] = seen, row
  elseif tonumber(till) < now - 86400000000 then
    write('HDEL', key, rows[i])
  end
end
send()
return out
