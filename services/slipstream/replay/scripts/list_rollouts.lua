-- ARGV: milliseconds. Return the JSON of each rollout whose last heartbeat is not older than this; forget the others.
local time = milliseconds()
local listed = {}
local all = redis.call('HGETALL', rollouts)
for i = 1, #all, 2 do
  local at, described = string.match(all[i + 1], '^(%d+) (.*)$')
  if time - tonumber(at) <= tonumber(ARGV[1]) then
    listed[#listed + 1] = described
  else
    redis.call('HDEL', rollouts, all[i])
  end
end
return listed
