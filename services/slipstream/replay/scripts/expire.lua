-- ARGV: lease milliseconds. Ends the leases that no heartbeat renewed in time; after a time in which nobody could
-- have renewed one, all leases begin anew. Called every second.
-- Returns {how many expired, how many began anew, JSON of each prompt retired since the last call:
-- [group id, index, worker, fault]}.
local FORGET_MILLISECONDS = 3600000  -- after which a silent worker is not mentioned any more
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
local known = redis.call('HGETALL', workers)
for i = 1, #known, 2 do
  if time - cjson.decode(known[i + 1]).at > FORGET_MILLISECONDS then
    redis.call('HDEL', workers, known[i])
  end
end
local told = {}
local news = redis.call('HGETALL', retired)
for i = 2, #news, 2 do
  told[#told + 1] = news[i]
end
redis.call('DEL', retired)
return {expired, renewed, told}
