-- ARGV: id, epoch, fault of the group (empty for none), completions, sampled tokens, sum of their versions, source of the
--   prompt in a mixture (empty for none), reward whose mean is the accuracy (empty: that of the evaluation), bytes to keep
--   for the learner to store (empty: none), most bytes of all such groups of the evaluation, then for each reward its name,
--   sum, count, value of the best completion and value of the most frequent answer (empty: none)
-- Returns {outcome, reason, detail}. The completions of a group with a fault count as errors. The training ledger does
-- not change.
local id, epoch, fault, completions = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local group = group_key(id)

local function reward_of(name)
  for i = 11, #ARGV, 5 do
    if ARGV[i] == name then
      return ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3], ARGV[i + 4]
    end
  end
  return '0', 0, '', ''
end

local function keep(number, bytes)
  local evaluated = evaluated_key(string.match(id, '^e%d+'))
  if redis.call('HEXISTS', evaluated, 'first') == 0 then
    redis.call('HSET', evaluated, 'first', number)
  end
  redis.call('HSET', evaluated, number, bytes)
  local size = redis.call('HINCRBY', evaluated, 'bytes', #bytes)
  while size > tonumber(ARGV[10]) do
    size = forget_first_evaluated(evaluated)
  end
  redis.call('EXPIRE', evaluated, REMEMBER_SECONDS)
end

if redis.call('HGET', group, 'inserted') == epoch then
  return {'duplicate', '', ''}
end
if not holds(id, epoch) then
  return {'fenced', '', ''}
end
local size = redis.call('HGET', group, 'size')
if fault == '' then
  fault = fault_of(completions, size, 0)
end
local evaluation = evaluation_key(id)
local sum, scored, best, majority = '0', 0, '', ''
if fault == '' then
  local own = ARGV[8]
  sum, scored, best, majority = reward_of(own ~= '' and own or redis.call('HGET', evaluation, 'reward'))
end
redis.call('ZREM', evaluation_leases, id)
redis.call('HSET', group, 'inserted', epoch)
settle(id)
local function count_scores(ending)
  redis.call('HINCRBY', evaluation, 'completions' .. ending, scored)
  redis.call('HINCRBY', evaluation, 'errors' .. ending, tonumber(size) - scored)
  redis.call('HINCRBYFLOAT', evaluation, 'sum' .. ending, sum)
end
count_scores('')
if ARGV[7] ~= '' then
  count_scores('@' .. ARGV[7])
end
if best ~= '' then
  redis.call('HINCRBYFLOAT', evaluation, 'best', best)
  redis.call('HINCRBY', evaluation, 'ranked', 1)
end
if majority ~= '' then
  redis.call('HINCRBYFLOAT', evaluation, 'majority', majority)
  redis.call('HINCRBY', evaluation, 'voted', 1)
end
redis.call('HINCRBY', evaluation, 'tokens', fault == '' and ARGV[5] or 0)
redis.call('HINCRBY', evaluation, 'versions', fault == '' and ARGV[6] or 0)
redis.call('HINCRBY', evaluation, 'remaining', -1)
if fault == '' and ARGV[9] ~= '' then
  keep(redis.call('HINCRBY', evaluation, 'kept', 1), ARGV[9])
end
return {fault == '' and 'accepted' or 'filtered', fault == '' and '' or 'invalid', fault}
