-- ARGV: worker, fault ('' for none), engines that the prompts ended, then id and epoch of each lease. Return the leases
-- that the worker still holds.
-- Returns how many.
local returned = 0
local fault = ARGV[2] ~= '' and ARGV[2] or nil
local engines_lost = tonumber(ARGV[3])
for i = 4, #ARGV, 2 do
  local id, epoch = ARGV[i], ARGV[i + 1]
  if holds(id, epoch) and redis.call('HGET', group_key(id), 'worker') == ARGV[1] then
    end_lease(id, 'returned', fault, engines_lost)
    returned = returned + 1
  end
end
return returned
