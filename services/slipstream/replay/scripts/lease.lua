-- ARGV: worker, max_prompts, serving_version, lease milliseconds, group_size, pipeline_depth, groups_per_step,
--   request id (empty: the request is not repeated if its response is lost), attempt
-- The leases of an earlier attempt of the same request come first, under new epochs: so the earlier attempt, when it
-- ends late, cannot return them. An attempt that is older than the latest one gets nothing.
-- Returns {id, epoch, index, size, 1 if the curriculum has decided before, engines that the prompt ended} for each lease:
-- evaluations first, then training prompts by dispatch index. A prompt about which the curriculum has decided keeps its
-- group size.
local worker, wanted, serving = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local request, attempt = prefix .. 'request:' .. ARGV[8], tonumber(ARGV[9])
local repeatable = ARGV[8] ~= ''
local time = milliseconds()
local deadline = time + tonumber(ARGV[4])
local granted = {}

local REQUEST_SECONDS = 300  -- a request is remembered this long; workers give up long before

local function grant(set, id, index, size)
  local epoch = redis.call('HINCRBY', group_key(id), 'epoch', 1)
  local decided = redis.call('HGET', group_key(id), 'decided')
  size = decided and tonumber(decided) or size
  redis.call('HSET', group_key(id), 'index', index, 'size', size, 'worker', worker, 'leased_at', time)
  redis.call('ZADD', set, deadline, id)
  if repeatable then
    redis.call('HSET', request, id, attempt .. ' ' .. epoch)
  end
  local engines_lost = tonumber(redis.call('HGET', group_key(id), 'engines_lost') or '0')
  granted[#granted + 1] = {id, epoch, index, size, decided and 1 or 0, engines_lost}
end

local function grant_again()
  local earlier = redis.call('HGETALL', request)
  for i = 1, #earlier, 2 do
    local id, leased_by, epoch = earlier[i], string.match(earlier[i + 1], '^(%d+) (%d+)$')
    if leased_by and tonumber(leased_by) < attempt and holds(id, epoch) and #granted < wanted then
      local fields = redis.call('HMGET', group_key(id), 'index', 'size')
      grant(is_evaluation(id) and evaluation_leases or leases, id, tonumber(fields[1]), tonumber(fields[2]))
    end
  end
end

local function grant_evaluations()
  local ids = redis.call('ZRANGEBYSCORE', evaluation_queue, '-inf', serving, 'LIMIT', 0,
    math.max(0, wanted - #granted))
  for _, id in ipairs(ids) do
    redis.call('ZREM', evaluation_queue, id)
    local size = tonumber(redis.call('HGET', evaluation_key(id), 'samples'))
    grant(evaluation_leases, id, tonumber(string.match(id, '%d+$')), size)
  end
end

-- Return the oldest prompt without a lease: the first of `requeued`, or else the next new prompt.
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

if not unwatched(time) then
  expire_leases(time)
end
hear_from(worker, 'actor', time, serving)
local latest = repeatable and tonumber(redis.call('HGET', request, 'latest') or '0')
if repeatable then
  if attempt < latest then
    return granted
  end
  if attempt > latest and latest > 0 then
    grant_again()
  end
end
grant_evaluations()
grant_training()
if repeatable and attempt > latest and (attempt > 1 or #granted > 0) then
  redis.call('HSET', request, 'latest', attempt)
  redis.call('EXPIRE', request, REQUEST_SECONDS)
end
return granted
