-- ARGV: version, learner epoch. Record that the fleet serves the version. A new version resets the count of refills of
-- dynamic sampling. An announcement of an older version changes nothing.
local refusal = replaced(ARGV[2])
if refusal then
  return refusal
end
allow_when_full()
note_version(ARGV[1])
if tonumber(ARGV[1]) > counter('version') then
  redis.call('HSET', counters, 'version', ARGV[1], 'refills', 0)
end
return 0
