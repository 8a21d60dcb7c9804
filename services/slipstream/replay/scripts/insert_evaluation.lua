-- ARGV: id, epoch, completions, sampled tokens, sum of their versions, then name, sum and count of each reward
-- Returns {outcome, detail}. Nothing of the training ledger changes.
local id, epoch, completions = ARGV[1], ARGV[2], ARGV[3]
local group = group_key(id)

local function reward_of(name)
  for i = 6, #ARGV, 3 do
    if ARGV[i] == name then
      return ARGV[i + 1], tonumber(ARGV[i + 2])
    end
  end
  return '0', 0
end

if redis.call('HGET', group, 'inserted') == epoch then
  return {'duplicate', ''}
end
if not holds(id, epoch) then
  return {'fenced', ''}
end
local size = redis.call('HGET', group, 'size')
if size ~= completions and completions ~= '0' then
  return {'wrong size', size}
end
local evaluation = evaluation_key(id)
local sum, scored = reward_of(redis.call('HGET', evaluation, 'reward'))
redis.call('ZREM', evaluation_leases, id)
redis.call('HSET', group, 'inserted', epoch)
settle(id)
redis.call('HINCRBY', evaluation, 'completions', scored)
redis.call('HINCRBY', evaluation, 'errors', tonumber(size) - scored)
redis.call('HINCRBYFLOAT', evaluation, 'sum', sum)
redis.call('HINCRBY', evaluation, 'tokens', ARGV[4])
redis.call('HINCRBY', evaluation, 'versions', ARGV[5])
redis.call('HINCRBY', evaluation, 'remaining', -1)
return {'accepted', ''}
