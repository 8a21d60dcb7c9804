-- ARGV: ids. Puts those in flight back at their old place. Returns how many.
local released = 0
for _, id in ipairs(ARGV) do
  if redis.call('ZREM', in_flight, id) == 1 then
    buffer(id)
    released = released + 1
  end
end
return released
