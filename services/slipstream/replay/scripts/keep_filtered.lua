-- ARGV: reason, the bytes of a filtered group, most bytes of all such groups. Keep it for the learner to store,
-- and forget the oldest ones beyond the bound.
local entry = ARGV[1] .. '\n' .. ARGV[2]
redis.call('RPUSH', filtered, entry)
local size = redis.call('INCRBY', filtered_bytes, #entry)
while size > tonumber(ARGV[3]) do
  size = redis.call('DECRBY', filtered_bytes, #redis.call('LPOP', filtered))
end
