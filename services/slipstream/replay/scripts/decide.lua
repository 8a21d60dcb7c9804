-- ARGV: id, epoch, size and reason of each new lease. With an empty reason the group keeps this size for good. With a
-- reason the prompt is skipped: its lease is counted nowhere else, and its index is not leased again.
-- Returns 1 for each lease that was still held, and 0 for the others, which are not changed.
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
  local is_held = holds(id, epoch)
  held[#held + 1] = is_held and 1 or 0
  if is_held and reason ~= '' then
    skip(id, reason)
  elseif is_held then
    redis.call('HSET', group_key(id), 'size', size, 'decided', size)
  end
end
return held
