-- ARGV: worker, lease milliseconds, serving version, scoring failure ('' for none), throughput ('' for none),
-- then id and epoch of each lease. Extend the leases that the worker still holds. Returns {id, epoch} of the others.
local worker = ARGV[1]
local lost = {}
allow_when_full()
local time = milliseconds()
hear_from(worker, 'actor', time, tonumber(ARGV[3]), ARGV[4] ~= '' and ARGV[4] or nil, tonumber(ARGV[5]))
for i = 6, #ARGV, 2 do
  local id, epoch = ARGV[i], ARGV[i + 1]
  if holds(id, epoch) and redis.call('HGET', group_key(id), 'worker') == worker then
    redis.call('ZADD', is_evaluation(id) and evaluation_leases or leases, time + tonumber(ARGV[2]), id)
  else
    lost[#lost + 1] = {id, epoch}
  end
end
return lost
