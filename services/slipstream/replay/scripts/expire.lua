-- ARGV: lease milliseconds. Expire the leases that no heartbeat renewed in time. If no heartbeat could arrive for
-- some time, extend all leases instead. Replay calls this every second.
-- Returns {number expired, number extended, for each prompt retired since the last call the JSON of [group id, index,
-- worker, fault]}.
local FORGET_MILLISECONDS = 3600000  -- a worker without calls is forgotten after this time
allow_when_full()
local time = milliseconds()
local expired, renewed = 0, 0
if unwatched(time) then
  for _, set in ipairs({leases, evaluation_leases}) do
    for _, id in ipairs(redis.call('ZRANGE', set, 0, -1)) do
      redis.call('ZADD', set, 'GT', time + tonumber(ARGV[1]), id)
      renewed = renewed + 1
    end
  end
else
  expired = expire_leases(time)
end
redis.call('HSET', counters, 'watched_at', time)
local states = redis.call('HGETALL', workers)
for i = 1, #states, 2 do
  if time - cjson.decode(states[i + 1]).at > FORGET_MILLISECONDS then
    redis.call('HDEL', workers, states[i])
  end
end
local reports = {}
local new_reports = redis.call('HGETALL', retired)
for i = 2, #new_reports, 2 do
  reports[#reports + 1] = new_reports[i]
end
redis.call('DEL', retired)
return {expired, renewed, reports}
