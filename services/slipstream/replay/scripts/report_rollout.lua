-- ARGV: name, serving version (-1 for none), the rollout as JSON ('' for one that takes no further requests),
-- throughput ('' for none). Record the heartbeat of a rollout.
local name, serving, described = ARGV[1], tonumber(ARGV[2]), ARGV[3]
allow_when_full()
local time = milliseconds()
hear_from(name, 'rollout', time, serving, nil, tonumber(ARGV[4]))
if described == '' then
  redis.call('HDEL', rollouts, name)
else
  redis.call('HSET', rollouts, name, time .. ' ' .. described)
end
