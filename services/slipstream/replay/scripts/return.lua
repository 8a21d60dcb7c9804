-- ARGV: worker, then id and epoch of each lease. Returns how many were this worker's to return.
local returned = 0
for i = 2, #ARGV, 2 do
  local id, epoch = ARGV[i], ARGV[i + 1]
  if holds(id, epoch) and redis.call('HGET', group_key(id), 'worker') == ARGV[1] then
    end_lease(id, 'returned')
    returned = returned + 1
  end
end
return returned
