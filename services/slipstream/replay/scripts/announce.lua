-- ARGV: version. The fleet serves it. A new version has all its refills of dynamic sampling before it.
allow_when_full()
if redis.call('HGET', counters, 'version') ~= ARGV[1] then
  redis.call('HSET', counters, 'version', ARGV[1], 'refills', 0)
end
return 0
