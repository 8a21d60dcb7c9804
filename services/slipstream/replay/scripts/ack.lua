-- ARGV: version, learner epoch, number of the hand-out, then group ids. Record that the step that made `version`
-- trained on the groups that the hand-out holds. They are kept until a checkpoint is durable.
-- Returns {number of those groups, what was generated since the previous step, next dispatch index, open indices,
-- number of groups that the step trained on without holding them}.
-- A version may be acknowledged again, after a lost response or by a learner that repeats the step. The second
-- acknowledgement returns the same `generated` as the first.
local version, hand_out = ARGV[1], ARGV[2] .. ':' .. ARGV[3]
local refusal = replaced(ARGV[2])
if refusal then
  return refusal
end
allow_when_full()
note_version(version)
local acked, strays = 0, 0
for i = 4, #ARGV do
  local id = ARGV[i]
  if held_by(id, hand_out) then
    redis.call('ZREM', in_flight, id)
    redis.call('ZADD', kept, version, id)
    redis.call('HSET', group_key(id), 'trained', version)
    count('trained', 1)
    count('tokens_trained', redis.call('HGET', group_key(id), 'tokens'))
    acked = acked + 1
  elseif redis.call('HEXISTS', group_key(id), 'epoch') == 1
      and redis.call('HGET', group_key(id), 'trained') ~= version then
    redis.call('ZADD', retrained, version, id)
    strays = strays + 1
  end
end
local open = {}
for _, set in ipairs({requeued, leases, buffered, in_flight}) do
  for _, id in ipairs(redis.call('ZRANGE', set, 0, -1)) do
    open[#open + 1] = tonumber(string.match(id, '%d+'))
  end
end
local summed = redis.call('HGET', generated_by, version)
if not summed then
  summed = cjson.encode(redis.call('HGETALL', generated))
  redis.call('HSET', generated_by, version, summed)
  redis.call('DEL', generated)
end
return {acked, cjson.decode(summed), counter('dispatched'), open, strays}
