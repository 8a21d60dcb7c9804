-- ARGV: version, groups_per_step, the learner's own id, then a cursor: next dispatch index, open indices.
-- Attach a learner that continues from `version`. Returns {released, restored, learner epoch}. A learner that has
-- attached before (its response was lost, or the call was delayed) gets {0, 0, its epoch}.
-- From here on admission counts as if each version so far had trained on groups_per_step groups. In an unbroken run
-- this is so. After a lost Redis or an older checkpoint the true number is unknown.
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
redis.call('DEL', evaluation_queue, evaluation_leases)  -- the learner that waited for them is gone
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
  redis.call('DEL', generated_by)  -- the learner will not repeat these steps with the same groups
end
-- If Redis has lost the position in the data, continue from the cursor of the checkpoint.
local dispatched = counter('dispatched')
if dispatched < tonumber(ARGV[4]) then
  for i = 5, #ARGV do
    if tonumber(ARGV[i]) >= dispatched then
      redis.call('ZADD', requeued, ARGV[i], string.format('g%09d', ARGV[i]))
    end
  end
  redis.call('HSET', counters, 'dispatched', ARGV[4])
end
redis.call('HSET', counters, 'version', version, 'refills', 0)
redis.call('HSET', counters, 'trained_offset', version * tonumber(ARGV[2]) - counter('trained'))
return {#released, #restored, epoch}
