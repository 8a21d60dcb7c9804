-- ARGV: 1 to pause admission, 0 to end the pause; who asks; why. A call that asks for the present state changes
-- nothing. Running leases go on. Returns {1 if the state changed, the state}.
allow_when_full()
local changed = is_paused() ~= (ARGV[1] == '1')
if changed then
  redis.call('HSET', admission, 'paused', ARGV[1], 'at', milliseconds(), 'by', ARGV[2], 'reason', ARGV[3])
end
return {changed and 1 or 0, admission_state()}
