-- ARGV: groups, oldest version that a group's newest token may have, version before the step
-- Drops what is over age, then moves the oldest groups in flight: exactly `groups` of them, or none. Returns ids.
-- Asked again for the same step, as after a broken stream, it gives the batch that is in flight for it.
local again = {}
for _, id in ipairs(redis.call('ZRANGE', in_flight, 0, -1)) do
  if redis.call('HGET', group_key(id), 'batch') == ARGV[3] then
    again[#again + 1] = id
  end
end
if #again == tonumber(ARGV[1]) then
  return again
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', ages, '-inf', '(' .. ARGV[2])) do
  unbuffer(id)
  settle(id)
  count('dropped:stale', 1)
end
local wanted = tonumber(ARGV[1])
if redis.call('ZCARD', buffered) < wanted then
  return {}
end
local ids = redis.call('ZRANGE', buffered, 0, wanted - 1)
for _, id in ipairs(ids) do
  unbuffer(id)
  redis.call('HSET', group_key(id), 'batch', ARGV[3])
  redis.call('ZADD', in_flight, redis.call('HGET', group_key(id), 'index'), id)
end
return ids
