-- The names of the keys, and the moves that the scripts share. Put in front of every script.
--
-- requeued ─▶ leases ─▶ buffered ─▶ in_flight ─▶ kept ─▶ (freed)        training, counted in the ledger
--               ├─▶ (skipped: as if it had never been leased)
--               └─▶ (retired: its lease ended by a fault too often)
-- evaluation_queue ─▶ evaluation_leases ─▶ (summed up)                  evaluation, never counted in it
--
-- A group is in one of these sets, or settled. Its hash `group:<id>` holds what is known of it.
local prefix = KEYS[1]
local counters = prefix .. 'counters'                      -- hash: the ledger, announced version, next index
local requeued = prefix .. 'requeued'                      -- ids by dispatch index: to be leased anew
local leases = prefix .. 'leases'                          -- ids by deadline in milliseconds: a heartbeat moves it
local buffered = prefix .. 'buffered'                      -- ids by dispatch index
local ages = prefix .. 'ages'                              -- the buffered ids by their newest token's version
local in_flight = prefix .. 'in_flight'                    -- ids by dispatch index
local kept = prefix .. 'kept'                              -- ids by the version that trained on them
local evaluation_queue = prefix .. 'evaluation_queue'      -- ids by the version to evaluate
local evaluation_leases = prefix .. 'evaluation_leases'    -- ids by deadline in milliseconds
local generated = prefix .. 'generated'                    -- hash: what was inserted since the last step, summed up
local generated_by = prefix .. 'generated_by'              -- hash: version not durable yet → what its step had generated
local learners = prefix .. 'learners'                      -- hash: a learner's own id → its epoch
local retrained = prefix .. 'retrained'                    -- ids that a step used without holding them, by its version
local evaluation_requests = prefix .. 'evaluation_requests'  -- hash: request id → the evaluation that it started
local pass_rates = prefix .. 'pass_rates'                  -- hash: prompt id → correct, total, version last seen

local retired = prefix .. 'retired'                        -- hash: id → JSON: prompts that were retired and not yet logged
local workers = prefix .. 'workers'                        -- hash: worker → JSON: when heard from, what it said

local REMEMBER_SECONDS = 600  -- how long a settled group is known, so that a repeated insert is recognised
local NEWS_MILLISECONDS = 500  -- what is known of a worker is as old as this at most, and not written more often
local MOST_FAULTS = 3         -- leases of one prompt that may end by a fault; with the last the prompt is retired

local function group_key(id)
  return prefix .. 'group:' .. id
end

local function is_evaluation(id)
  return string.sub(id, 1, 1) == 'e'
end

local function evaluation_key(id)
  return prefix .. 'evaluation:' .. string.match(id, '^e%d+')
end

local function milliseconds()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function count(name, amount)
  redis.call('HINCRBY', counters, name, amount)
end

local function counter(name)
  return tonumber(redis.call('HGET', counters, name) or '0')
end

-- When memory is full Redis refuses a script's first write if it may take memory, and nothing after that.
-- A script that only ever frees memory in the end starts with this harmless write.
local function allow_when_full()
  redis.call('DEL', prefix .. 'nothing')
end

-- The error to return when another learner has attached since, or Redis has lost that this one had; else nil.
local function replaced(learner_epoch)
  local current = counter('learner_epoch')
  if tonumber(learner_epoch) ~= current then
    return redis.error_reply(string.format(
      'SUPERSEDED learner epoch %s: by now it is %d', learner_epoch, current))
  end
end

-- Is this group in flight, and was it this hand-out that gave it to the learner?
local function held_by(id, hand_out)
  return redis.call('ZSCORE', in_flight, id) and redis.call('HGET', group_key(id), 'hand_out') == hand_out
end

local function buffer(id)
  local known = redis.call('HMGET', group_key(id), 'index', 'newest')
  redis.call('ZADD', buffered, known[1], id)
  redis.call('ZADD', ages, known[2], id)
end

local function unbuffer(id)
  redis.call('ZREM', buffered, id)
  redis.call('ZREM', ages, id)
end

-- The group is done with: free its bytes, remember for a while that it was here.
local function settle(id)
  redis.call('HDEL', group_key(id), 'bytes')
  redis.call('EXPIRE', group_key(id), REMEMBER_SECONDS)
end

-- No worker gets the prompt again. An evaluation counts its completions as errors.
local function retire(id, fault)
  local known = redis.call('HMGET', group_key(id), 'index', 'worker', 'size')
  if is_evaluation(id) then
    redis.call('HINCRBY', evaluation_key(id), 'errors', known[3])
    redis.call('HINCRBY', evaluation_key(id), 'remaining', -1)
  else
    count('retired:' .. fault, 1)
  end
  redis.call('HSET', retired, id, cjson.encode({id, tonumber(known[1]), known[2], fault}))
  settle(id)
end

-- A lease is over without a group: the prompt waits for another worker. `fault` says what went wrong, and is nil
-- when the worker returned the lease in an orderly way.
local function end_lease(id, why, fault)
  local evaluation = is_evaluation(id)
  redis.call('ZREM', evaluation and evaluation_leases or leases, id)
  if not evaluation then
    count(why, 1)
  end
  if fault and redis.call('HINCRBY', group_key(id), 'faults', 1) >= MOST_FAULTS then
    retire(id, fault)
  elseif evaluation then
    redis.call('ZADD', evaluation_queue, redis.call('HGET', evaluation_key(id), 'version'), id)
  else
    redis.call('ZADD', requeued, redis.call('HGET', group_key(id), 'index'), id)
  end
end

-- Nobody looked for overdue leases for so long that heartbeats could not arrive either, as while Redis or replay
-- was stopped: a silent worker is then no sign of a fault.
local MOST_UNWATCHED_MILLISECONDS = 5000
local function unwatched(time)
  local watched = redis.call('HGET', counters, 'watched_at')
  return watched and time - tonumber(watched) > MOST_UNWATCHED_MILLISECONDS
end

-- What is known of a worker from now on; what is nil stays as it was.
local function hear_from(worker, time, serving, failure)
  local known = cjson.decode(redis.call('HGET', workers, worker) or '{}')
  if known.at and time - known.at < NEWS_MILLISECONDS and serving == known.serving and not failure then
    return  -- a wait for admission asks many times a second
  end
  known.at = time
  known.serving = serving
  known.failure = failure or known.failure
  redis.call('HSET', workers, worker, cjson.encode(known))
end

local function expire_leases(time)
  local expired = 0
  for _, set in ipairs({leases, evaluation_leases}) do
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', set, '-inf', time)) do
      end_lease(id, 'expired', 'expired')
      expired = expired + 1
    end
  end
  return expired
end

-- Is this lease still held, under this epoch?
local function holds(id, epoch)
  local set = is_evaluation(id) and evaluation_leases or leases
  return redis.call('ZSCORE', set, id) and redis.call('HGET', group_key(id), 'epoch') == epoch
end

-- What is wrong with a group that is right by itself: its size, or a version that no learner has made yet.
local function fault_of(completions, size, newest)
  if completions ~= size and completions ~= '0' then
    return string.format('it has %s completions, and its lease asked for %s', completions, size)
  end
  local made = math.max(counter('made'), counter('version'))
  if newest > made then
    return string.format('version %d sampled it, and version %d is the newest that there is', newest, made)
  end
  return ''
end

-- A version has been made; what was sampled from it stays valid when a learner goes back behind it.
local function note_version(version)
  if tonumber(version) > counter('made') then
    redis.call('HSET', counters, 'made', version)
  end
end

-- How many groups may be started: (pipeline_depth + version + 1) * groups_per_step - accepted - running.
local function admission_free(pipeline_depth, groups_per_step)
  local accepted = counter('trained') + counter('trained_offset')
    + redis.call('ZCARD', buffered) + redis.call('ZCARD', in_flight)
  local bound = (pipeline_depth + counter('version') + 1) * groups_per_step
  return bound - accepted - redis.call('ZCARD', leases)
end
