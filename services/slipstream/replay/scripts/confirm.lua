-- ARGV: version, learner epoch. The checkpoint of the version is durable: free the groups trained up to it. Returns
-- how many.
local refusal = replaced(ARGV[2])
if refusal then
  return refusal
end
local ids = redis.call('ZRANGEBYSCORE', kept, '-inf', ARGV[1])
for _, id in ipairs(ids) do
  redis.call('ZREM', kept, id)
  settle(id)
end
for _, made in ipairs(redis.call('HKEYS', generated_by)) do
  if tonumber(made) <= tonumber(ARGV[1]) then
    redis.call('HDEL', generated_by, made)
  end
end
return #ids
