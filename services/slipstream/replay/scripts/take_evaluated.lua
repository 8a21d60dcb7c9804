-- ARGV: id of the evaluation, number of the first group that the learner lacks, number of the first group to return,
-- about how many bytes to return. Forget the groups that the learner has. Returns {number, group, number, group, ...}.
allow_when_full()
local evaluated = evaluated_key(ARGV[1])
local first = tonumber(redis.call('HGET', evaluated, 'first') or '0')
if first == 0 then
  return {}
end
while first < tonumber(ARGV[2]) and redis.call('HEXISTS', evaluated, first) == 1 do
  forget_first_evaluated(evaluated)
  first = first + 1
end
local taken, size, number = {}, 0, math.max(first, tonumber(ARGV[3]))
while size < tonumber(ARGV[4]) do
  local bytes = redis.call('HGET', evaluated, number)
  if not bytes then
    break
  end
  taken[#taken + 1], taken[#taken + 2] = number, bytes
  number, size = number + 1, size + #bytes
end
return taken
