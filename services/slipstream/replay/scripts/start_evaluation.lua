-- ARGV: version, prompts, samples_per_prompt, reward, request id ('' for none). Queues the held-out prompts.
-- Returns the evaluation's id; for a request that was made before, as after a lost answer, that of then.
local version, prompts = ARGV[1], tonumber(ARGV[2])
local request = prefix .. 'request:' .. ARGV[5]
local REQUEST_SECONDS = 300
local begun = ARGV[5] ~= '' and redis.call('HGET', request, 'evaluation')
if begun then
  return begun
end
local id = string.format('e%09d', redis.call('HINCRBY', counters, 'evaluations', 1))
redis.call('HSET', evaluation_key(id), 'version', version, 'samples', ARGV[3], 'reward', ARGV[4],
  'remaining', prompts)
for index = 0, prompts - 1 do
  redis.call('ZADD', evaluation_queue, version, string.format('%s-%09d', id, index))
end
if ARGV[5] ~= '' then
  redis.call('HSET', request, 'evaluation', id)
  redis.call('EXPIRE', request, REQUEST_SECONDS)
end
return id
