-- ARGV: about how many bytes to return. Return the oldest filtered groups, and forget them: {reason, line feed,
-- group} each.
allow_when_full()
local taken, size = {}, 0
while size < tonumber(ARGV[1]) do
  local entry = redis.call('LPOP', filtered)
  if not entry then
    break
  end
  taken[#taken + 1], size = entry, size + #entry
end
redis.call('DECRBY', filtered_bytes, size)
return taken
