-- ARGV: id, epoch, size and reason of each new lease. Without a reason the group gets its size, for good. With
-- one the prompt is skipped: its lease was never given, and its index does not come again.
-- Returns 1 for each lease that was still held, and 0 for the others, which stay as they are.
local held = {}

local function skip(id, reason)
  redis.call('ZREM', leases, id)
  redis.call('DEL', group_key(id))
  count('leased', -1)
  count('skipped:' .. reason, 1)
end

allow_when_full()
for i = 1, #ARGV, 4 do
  local id, epoch, size, reason = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local mine = holds(id, epoch)
  held[#held + 1] = mine and 1 or 0
  if mine and reason ~= '' then
    skip(id, reason)
  elseif mine then
    redis.call('HSET', group_key(id), 'size', size, 'decided', size)
  end
end
return held
