-- The names of the keys, and the functions that the scripts share. This file is put in front of every script.
--
-- requeued ─▶ leases ─▶ buffered ─▶ in_flight ─▶ kept ─▶ (freed)        training, counted in the ledger
--               ├─▶ (skipped: the lease is counted nowhere else)
--               └─▶ (retired: the prompt has too many faults)
-- evaluation_queue ─▶ evaluation_leases ─▶ (summed up)                  evaluation, never counted in the ledger
--
-- A group is in one of these sets, or it is settled. The hash `group:<id>` holds its fields.
local prefix = KEYS[1]
local counters = prefix .. 'counters'                      -- hash: the ledger, announced version, next index
local requeued = prefix .. 'requeued'                      -- ids by dispatch index: prompts to lease again
local leases = prefix .. 'leases'                          -- ids by deadline in milliseconds, which a heartbeat moves
local buffered = prefix .. 'buffered'                      -- ids by dispatch index
local ages = prefix .. 'ages'                              -- the buffered ids by the version of their newest token
local in_flight = prefix .. 'in_flight'                    -- ids by dispatch index
local kept = prefix .. 'kept'                              -- ids by the version that trained on them
local evaluation_queue = prefix .. 'evaluation_queue'      -- ids by the version to evaluate
local evaluation_leases = prefix .. 'evaluation_leases'    -- ids by deadline in milliseconds
local generated = prefix .. 'generated'                    -- hash: sums over the groups inserted since the last step
local generated_by = prefix .. 'generated_by'              -- hash: version without a durable checkpoint → its `generated`
local learners = prefix .. 'learners'                      -- hash: a learner's own id → its epoch
local retrained = prefix .. 'retrained'                    -- ids that a step trained on without holding them, by its version
local evaluation_requests = prefix .. 'evaluation_requests'  -- hash: request id → id of its evaluation
local pass_rates = prefix .. 'pass_rates'                  -- hash: prompt id → correct, total, version last seen
local admission = prefix .. 'admission'                    -- hash: paused (1, 0); when, by whom and why that changed

local retired = prefix .. 'retired'                        -- hash: id → JSON: retired prompts that are not logged yet
local filtered = prefix .. 'filtered'                      -- list: name in the ledger, line feed, group: for the learner to store
local filtered_bytes = prefix .. 'filtered_bytes'          -- bytes of that list
local workers = prefix .. 'workers'                        -- hash: worker → JSON: time of its last call, and its state
local rollouts = prefix .. 'rollouts'                      -- hash: rollout → time of its last heartbeat, and its JSON

local REMEMBER_SECONDS = 600  -- a settled group is remembered this long, to recognise a repeated insert
local NEWS_MILLISECONDS = 500  -- the state of a worker is written at most this often
local MOST_FAULTS = 3         -- at this number of faults, the prompt is retired

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

-- When memory is full, Redis refuses the first write of a script if that command may use memory, and checks no
-- later write. A script that frees memory on balance starts with this DEL, so that Redis lets it run.
local function allow_when_full()
  redis.call('DEL', prefix .. 'nothing')
end

-- Return an error if another learner has attached since, or if Redis has lost the attachment; else nil.
local function replaced(learner_epoch)
  local current = counter('learner_epoch')
  if tonumber(learner_epoch) ~= current then
    return redis.error_reply(string.format(
      'SUPERSEDED learner epoch %s: by now it is %d', learner_epoch, current))
  end
end

-- Return whether the group is in flight under this hand-out.
local function held_by(id, hand_out)
  return redis.call('ZSCORE', in_flight, id) and redis.call('HGET', group_key(id), 'hand_out') == hand_out
end

local function buffer(id)
  local fields = redis.call('HMGET', group_key(id), 'index', 'newest')
  redis.call('ZADD', buffered, fields[1], id)
  redis.call('ZADD', ages, fields[2], id)
end

local function unbuffer(id)
  redis.call('ZREM', buffered, id)
  redis.call('ZREM', ages, id)
end

-- Keep a filtered or dropped group for the learner to store, and forget the oldest ones beyond the bound. `name` is
-- that of the ledger, as in filtered:invalid.
local function keep_for_learner(name, bytes, most_bytes)
  local entry = name .. '\n' .. bytes
  redis.call('RPUSH', filtered, entry)
  local size = redis.call('INCRBY', filtered_bytes, #entry)
  while size > most_bytes do
    size = redis.call('DECRBY', filtered_bytes, #redis.call('LPOP', filtered))
  end
end

-- The key of the groups of an evaluation that the learner has not taken yet. It is a hash: number of the group → group,
-- `bytes` → their size, `first` → number of the oldest one.
local function evaluated_key(evaluation_id)
  return prefix .. 'evaluated:' .. evaluation_id
end

local function forget_first_evaluated(evaluated)
  local first = redis.call('HGET', evaluated, 'first')
  local bytes = redis.call('HGET', evaluated, first)
  redis.call('HDEL', evaluated, first)
  redis.call('HINCRBY', evaluated, 'first', 1)
  return redis.call('HINCRBY', evaluated, 'bytes', -#bytes)
end

-- Free the bytes of a finished group. Its hash stays for REMEMBER_SECONDS.
local function settle(id)
  redis.call('HDEL', group_key(id), 'bytes')
  redis.call('EXPIRE', group_key(id), REMEMBER_SECONDS)
end

-- Retire a prompt: it is not leased again. An evaluation counts its completions as errors.
local function retire(id, fault)
  local fields = redis.call('HMGET', group_key(id), 'index', 'worker', 'size')
  if is_evaluation(id) then
    redis.call('HINCRBY', evaluation_key(id), 'errors', fields[3])
    redis.call('HINCRBY', evaluation_key(id), 'remaining', -1)
  else
    count('retired:' .. fault, 1)
  end
  redis.call('HSET', retired, id, cjson.encode({id, tonumber(fields[1]), fields[2], fault}))
  settle(id)
end

-- End a lease without a group: its prompt waits for another worker. `fault` is the reason, or nil if the worker
-- returned the lease without a fault. A fault counts as many times as the prompt ended engines, and at least once.
local function end_lease(id, why, fault, engines_lost)
  local evaluation = is_evaluation(id)
  redis.call('ZREM', evaluation and evaluation_leases or leases, id)
  if not evaluation then
    count(why, 1)
  end
  engines_lost = engines_lost or 0
  if engines_lost > 0 then
    redis.call('HINCRBY', group_key(id), 'engines_lost', engines_lost)
  end
  if fault and redis.call('HINCRBY', group_key(id), 'faults', math.max(1, engines_lost)) >= MOST_FAULTS then
    retire(id, fault)
  elseif evaluation then
    redis.call('ZADD', evaluation_queue, redis.call('HGET', evaluation_key(id), 'version'), id)
  else
    redis.call('ZADD', requeued, redis.call('HGET', group_key(id), 'index'), id)
  end
end

-- Return whether no sweep ran for so long that Redis or replay must have been stopped. Then no heartbeat could
-- arrive, so a lease without a heartbeat is no sign of a dead worker.
local MOST_UNWATCHED_MILLISECONDS = 5000
local function unwatched(time)
  local watched = redis.call('HGET', counters, 'watched_at')
  return watched and time - tonumber(watched) > MOST_UNWATCHED_MILLISECONDS
end

-- Update the state of a worker; a nil argument leaves its field unchanged.
local function hear_from(worker, kind, time, serving, failure, throughput)
  local state = cjson.decode(redis.call('HGET', workers, worker) or '{}')
  if state.at and time - state.at < NEWS_MILLISECONDS and serving == state.serving and not failure and not throughput then
    return  -- a worker that waits for admission calls many times a second
  end
  state.at = time
  state.kind = kind
  state.serving = serving
  state.failure = failure or state.failure
  state.throughput = throughput or state.throughput
  redis.call('HSET', workers, worker, cjson.encode(state))
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

-- Return whether the lease still runs under this epoch.
local function holds(id, epoch)
  local set = is_evaluation(id) and evaluation_leases or leases
  return redis.call('ZSCORE', set, id) and redis.call('HGET', group_key(id), 'epoch') == epoch
end

-- Return the fault of a well-formed group: a wrong size, or a version that no learner has made; '' for none.
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

-- Remember the newest version ever made: groups that it sampled stay valid when a learner restarts before it.
local function note_version(version)
  if tonumber(version) > counter('made') then
    redis.call('HSET', counters, 'made', version)
  end
end

-- Return whether an operator has paused admission.
local function is_paused()
  return redis.call('HGET', admission, 'paused') == '1'
end

-- Return {paused, milliseconds of the last change, by whom, why, milliseconds now}; the first four are nil before the
-- first change.
local function admission_state()
  local state = redis.call('HMGET', admission, 'paused', 'at', 'by', 'reason')
  state[5] = milliseconds()
  return state
end

-- Return how many prompts may be leased: (pipeline_depth + version + 1) * groups_per_step - accepted - running, and 0
-- while admission is paused.
local function admission_free(pipeline_depth, groups_per_step)
  if is_paused() then
    return 0
  end
  local accepted = counter('trained') + counter('trained_offset')
    + redis.call('ZCARD', buffered) + redis.call('ZCARD', in_flight)
  local bound = (pipeline_depth + counter('version') + 1) * groups_per_step
  return bound - accepted - redis.call('ZCARD', leases)
end
