-- ARGV: worker, max_prompts, serving_version, lease milliseconds, group_size, pipeline_depth, groups_per_step
-- Returns {id, epoch, index, size, 1 if it was decided on before} for each lease: evaluations first, then the
-- oldest dispatch. A prompt that was decided on keeps the size that it got then.
local worker, wanted, serving = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = milliseconds()
local deadline = time + tonumber(ARGV[4])
local granted = {}

local function grant(set, id, index, size)
  local epoch = redis.call('HINCRBY', group_key(id), 'epoch', 1)
  local decided = redis.call('HGET', group_key(id), 'decided')
  size = decided and tonumber(decided) or size
  redis.call('HSET', group_key(id), 'index', index, 'size', size, 'worker', worker)
  redis.call('ZADD', set, deadline, id)
  granted[#granted + 1] = {id, epoch, index, size, decided and 1 or 0}
end

local function grant_evaluations()
  local ids = redis.call('ZRANGEBYSCORE', evaluation_queue, '-inf', serving, 'LIMIT', 0, wanted)
  for _, id in ipairs(ids) do
    redis.call('ZREM', evaluation_queue, id)
    local size = tonumber(redis.call('HGET', evaluation_key(id), 'samples'))
    grant(evaluation_leases, id, tonumber(string.match(id, '%d+$')), size)
  end
end

-- The oldest prompt without a lease: one that came back, or else the next new one.
local function next_prompt()
  local oldest = redis.call('ZPOPMIN', requeued)
  if oldest[1] then
    return oldest[1], tonumber(oldest[2])
  end
  local index = redis.call('HINCRBY', counters, 'dispatched', 1) - 1
  return string.format('g%09d', index), index
end

local function grant_training()
  local free = admission_free(tonumber(ARGV[6]), tonumber(ARGV[7]))
  for _ = 1, math.min(free, wanted - #granted) do
    local id, index = next_prompt()
    grant(leases, id, index, tonumber(ARGV[5]))
    count('leased', 1)
  end
end

expire_leases(time)
grant_evaluations()
grant_training()
return granted
