-- ARGV: hand-out, reason, then group ids. Drop the groups that the hand-out holds. Returns how many.
local dropped = 0
allow_when_full()
for i = 3, #ARGV do
  if held_by(ARGV[i], ARGV[1]) then
    redis.call('ZREM', in_flight, ARGV[i])
    settle(ARGV[i])
    count('dropped:' .. ARGV[2], 1)
    dropped = dropped + 1
  end
end
return dropped
