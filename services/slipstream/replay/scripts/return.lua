-- ARGV: worker, fault ('' for none), then id and epoch of each lease. Return the leases that the worker still holds.
-- Returns how many.
local returned = 0
local fault = ARGV[2] ~= '' and ARGV[2] or nil
for i = 3, #ARGV, 2 do
  local id, epoch = ARGV[i], ARGV[i + 1]
  if holds(id, epoch) and redis.call('HGET', group_key(id), 'worker') == ARGV[1] then
    end_lease(id, 'returned', fault)
    returned = returned + 1
  end
end
return returned
