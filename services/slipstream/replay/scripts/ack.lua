-- ARGV: version, then ids. Those in flight were trained on; they are kept until a checkpoint.
-- Returns {how many, what was generated since the step before, next dispatch index, indices still open}.
-- Acknowledged again, as after a lost answer or by a learner that makes the step anew, a version has the same
-- generated as at first.
allow_when_full()
local acked = 0
for i = 2, #ARGV do
  local id = ARGV[i]
  if redis.call('ZREM', in_flight, id) == 1 then
    redis.call('ZADD', kept, ARGV[1], id)
    count('trained', 1)
    count('tokens_trained', redis.call('HGET', group_key(id), 'tokens'))
    acked = acked + 1
  end
end
local open = {}
for _, set in ipairs({requeued, leases, buffered, in_flight}) do
  for _, id in ipairs(redis.call('ZRANGE', set, 0, -1)) do
    open[#open + 1] = tonumber(string.match(id, '%d+'))
  end
end
local made = redis.call('HGET', generated_by, ARGV[1])
if not made then
  made = cjson.encode(redis.call('HGETALL', generated))
  redis.call('HSET', generated_by, ARGV[1], made)
  redis.call('DEL', generated)
end
return {acked, cjson.decode(made), counter('dispatched'), open}
