-- ARGV: version, learner epoch. The fleet serves it. A new version has all its refills of dynamic sampling before
-- it; an announcement that comes late changes nothing.
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
