-- ARGV: version, prompts, samples_per_prompt, reward. Queues the held-out prompts. Returns the evaluation's id.
local version, prompts = ARGV[1], tonumber(ARGV[2])
local id = string.format('e%09d', redis.call('HINCRBY', counters, 'evaluations', 1))
redis.call('HSET', evaluation_key(id), 'version', version, 'samples', ARGV[3], 'reward', ARGV[4],
  'remaining', prompts)
for index = 0, prompts - 1 do
  redis.call('ZADD', evaluation_queue, version, string.format('%s-%09d', id, index))
end
return id
