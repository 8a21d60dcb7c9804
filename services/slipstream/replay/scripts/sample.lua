-- ARGV: groups, oldest version that a group's newest token may have, version before the step, learner epoch,
--   number of this hand-out, most bytes of filtered and dropped groups to keep for the learner to store (0: keep none)
-- Release the groups that an older hand-out holds for the same step; drop the groups over age; then put the oldest
-- groups in flight: exactly `groups` of them, or none. Returns their ids.
local wanted, number = tonumber(ARGV[1]), tonumber(ARGV[5])
local refusal = replaced(ARGV[4])
if refusal then
  return refusal
end
local newest = counter('hand_out')
if number < newest then
  return redis.error_reply(string.format('SUPERSEDED hand-out %d: hand-out %d is newer', number, newest))
end
allow_when_full()
if number > newest then
  redis.call('HSET', counters, 'hand_out', number)
  for _, id in ipairs(redis.call('ZRANGE', in_flight, 0, -1)) do
    if redis.call('HGET', group_key(id), 'batch') == ARGV[3] then
      redis.call('ZREM', in_flight, id)
      buffer(id)
    end
  end
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', ages, '-inf', '(' .. ARGV[2])) do
  unbuffer(id)
  if tonumber(ARGV[6]) > 0 then
    keep_for_learner('dropped:stale', redis.call('HGET', group_key(id), 'bytes'), tonumber(ARGV[6]))
  end
  settle(id)
  count('dropped:stale', 1)
end
if redis.call('ZCARD', buffered) < wanted then
  return {}
end
local ids = redis.call('ZRANGE', buffered, 0, wanted - 1)
for _, id in ipairs(ids) do
  unbuffer(id)
  redis.call('HSET', group_key(id), 'batch', ARGV[3], 'hand_out', ARGV[4] .. ':' .. ARGV[5])
  redis.call('ZADD', in_flight, redis.call('HGET', group_key(id), 'index'), id)
end
return ids
