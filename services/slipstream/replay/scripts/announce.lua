-- ARGV: version. The fleet serves it.
allow_when_full()
redis.call('HSET', counters, 'version', ARGV[1])
return 0
