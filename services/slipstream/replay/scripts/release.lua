-- ARGV: hand-out, then group ids. Release the groups that the hand-out holds to their old place in the buffer. Returns
-- how many.
local released = 0
allow_when_full()
for i = 2, #ARGV do
  if held_by(ARGV[i], ARGV[1]) then
    redis.call('ZREM', in_flight, ARGV[i])
    buffer(ARGV[i])
    released = released + 1
  end
end
return released
