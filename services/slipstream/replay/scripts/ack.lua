-- ARGV: version, then ids. Those in flight were trained on; they are kept until a checkpoint.
-- Returns {how many, what has been generated so far, next dispatch index, dispatch indices still open}.
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
return {acked, redis.call('HGETALL', generated), counter('dispatched'), open}
