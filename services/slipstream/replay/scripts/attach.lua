-- ARGV: version, groups_per_step, the learner's own id, then a cursor: next dispatch index, indices that were open
-- The learner continues from `version`. Returns {released, restored, learner epoch}; to a learner that has attached
-- before, as when the answer was lost or the call was delayed on the way, only its epoch.
-- From here on admission counts as if the versions so far had trained on groups_per_step groups each: true of
-- an unbroken run, and the only bound that makes sense after a lost Redis or an older checkpoint.
local version = tonumber(ARGV[1])
allow_when_full()
local epoch = redis.call('HGET', learners, ARGV[3])
if epoch then
  return {0, 0, tonumber(epoch)}
end
epoch = redis.call('HINCRBY', counters, 'learner_epoch', 1)
redis.call('HSET', learners, ARGV[3], epoch)
redis.call('HSET', counters, 'hand_out', 0)
redis.call('DEL', evaluation_requests)
redis.call('DEL', evaluation_queue, evaluation_leases)  -- nobody waits for them any more
note_version(version)
local released = redis.call('ZRANGE', in_flight, 0, -1)
for _, id in ipairs(released) do
  redis.call('ZREM', in_flight, id)
  buffer(id)
end
local restored = redis.call('ZRANGEBYSCORE', kept, '(' .. version, '+inf')
for _, id in ipairs(restored) do
  redis.call('ZREM', kept, id)
  redis.call('HDEL', group_key(id), 'trained')
  count('trained', -1)
  count('tokens_trained', -tonumber(redis.call('HGET', group_key(id), 'tokens')))
  buffer(id)
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', retrained, '(' .. version, '+inf')) do
  redis.call('ZREM', retrained, id)
end
if redis.call('HEXISTS', generated_by, version + 1) == 0 then
  redis.call('DEL', generated_by)  -- of steps that will not be made anew as they were
end
-- A Redis that lost what the checkpoint knows of goes on in the data where the checkpoint was.
local known = counter('dispatched')
if known < tonumber(ARGV[4]) then
  for i = 5, #ARGV do
    if tonumber(ARGV[i]) >= known then
      redis.call('ZADD', requeued, ARGV[i], string.format('g%09d', ARGV[i]))
    end
  end
  redis.call('HSET', counters, 'dispatched', ARGV[4])
end
redis.call('HSET', counters, 'version', version, 'refills', 0)
redis.call('HSET', counters, 'trained_offset', version * tonumber(ARGV[2]) - counter('trained'))
return {#released, #restored, epoch}
