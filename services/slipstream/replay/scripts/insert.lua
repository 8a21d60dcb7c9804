-- ARGV: id, epoch, fault of the group (empty for none), completions, scored completions, withheld completions, tokens,
--   newest version, bytes, limit of refills of a version (-1: never filter for lack of variance), prompt id, correct
--   completions (-1: remember no pass rates), decay of a pass rate, whether its rewards are all equal (1 or 0), source
--   of the prompt in a mixture (empty for none), then name, sum and count of each reward
-- Returns {outcome, reason, detail}. A group with a fault is filtered as invalid.
-- An accepted group is stored by the first write, which Redis refuses when memory is full. Then nothing has changed,
-- and the insert may be repeated.
local id, epoch, fault, completions, scored = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local most_refills = tonumber(ARGV[10])
local group = group_key(id)

local MOST_PROMPTS = 1000000  -- pass rates of further prompts are not remembered

-- ending: '' for the fields of all groups, '@' and the source for those of a source
local function count_generated(ending)
  if scored > 0 then
    redis.call('HINCRBY', generated, 'groups' .. ending, 1)
    redis.call('HINCRBY', generated, 'unvaried_groups' .. ending, ARGV[14])
  end
  for i = 16, #ARGV, 3 do
    redis.call('HINCRBYFLOAT', generated, 'sum:' .. ARGV[i] .. ending, ARGV[i + 1])
    redis.call('HINCRBY', generated, 'count:' .. ARGV[i] .. ending, ARGV[i + 2])
  end
end

local function accept_lease()
  redis.call('ZREM', leases, id)
  count('inserted', 1)
  if fault ~= '' then
    return  -- the numbers of an invalid group are not counted
  end
  count('withheld', ARGV[6])
  count('tokens_inserted', ARGV[7])
  count_generated('')
  if ARGV[15] ~= '' then
    count_generated('@' .. ARGV[15])
  end
end

local function remember_pass_rate()
  local prompt, correct, decay = ARGV[11], tonumber(ARGV[12]), tonumber(ARGV[13])
  if correct < 0 or scored == 0 then
    return
  end
  local stored = redis.call('HGET', pass_rates, prompt)
  if not stored and redis.call('HLEN', pass_rates) >= MOST_PROMPTS then
    return
  end
  local old_correct, old_total = string.match(stored or '0 0 0', '^(%S+) (%S+)')
  local counts = string.format('%.17g %.17g', decay * tonumber(old_correct) + correct,
    decay * tonumber(old_total) + scored)
  redis.call('HSET', pass_rates, prompt, counts .. ' ' .. counter('version'))
end

local function filter(reason)
  accept_lease()
  redis.call('HSET', group, 'inserted', epoch)
  count('filtered:' .. reason, 1)
  settle(id)
  remember_pass_rate()
  return {'filtered', reason, fault}
end

if redis.call('HGET', group, 'inserted') == epoch then
  allow_when_full()
  count('duplicates', 1)
  return {'duplicate', '', ''}
end
if not holds(id, epoch) then
  allow_when_full()
  count('fenced', 1)
  return {'fenced', '', ''}
end
local size = redis.call('HGET', group, 'size')
if fault == '' then
  fault = fault_of(completions, size, tonumber(ARGV[8]))
end
if fault ~= '' then
  scored = 0
  return filter('invalid')
end
if scored < math.min(2, tonumber(size)) then
  return filter('unscored')
end
if most_refills >= 0 and counter('refills') < most_refills then
  local outcome = filter('zero_variance')
  count('refills', 1)
  return outcome
end
redis.call('HSET', group, 'inserted', epoch, 'tokens', ARGV[7], 'newest', ARGV[8], 'bytes', ARGV[9])
accept_lease()
buffer(id)
if most_refills >= 0 then
  count('refills_exhausted', 1)
end
remember_pass_rate()
return {'accepted', '', ''}
