-- ARGV: hand-out, then ids. Puts those that it holds back at their old place. Returns how many.
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
