-- ARGV: about how many bytes to return. Return the oldest filtered and dropped groups, and forget them: {name in the
-- ledger, line feed, group} each.
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
