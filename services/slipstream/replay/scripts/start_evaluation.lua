-- ARGV: version, prompts, samples_per_prompt, reward, learner epoch, request id. Queue the held-out prompts.
-- Returns the id of the evaluation. A repeated request gets the same id.
local version, prompts = ARGV[1], tonumber(ARGV[2])
local refusal = replaced(ARGV[5])
if refusal then
  return refusal
end
local existing = redis.call('HGET', evaluation_requests, ARGV[6])
if existing then
  return existing
end
local id = string.format('e%09d', redis.call('HINCRBY', counters, 'evaluations', 1))
redis.call('HSET', evaluation_key(id), 'version', version, 'samples', ARGV[3], 'reward', ARGV[4],
  'remaining', prompts)
for index = 0, prompts - 1 do
  redis.call('ZADD', evaluation_queue, version, string.format('%s-%09d', id, index))
end
redis.call('HSET', evaluation_requests, ARGV[6], id)
return id
