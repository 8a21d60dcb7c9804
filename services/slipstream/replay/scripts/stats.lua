-- ARGV: pipeline_depth, groups_per_step. Returns {counters, sizes of the sets, admission_free, state of admission}, read
-- atomically.
return {
  redis.call('HGETALL', counters),
  {redis.call('ZCARD', leases), redis.call('ZCARD', buffered), redis.call('ZCARD', in_flight),
    redis.call('ZCARD', kept), redis.call('ZCARD', retrained)},
  math.max(0, admission_free(tonumber(ARGV[1]), tonumber(ARGV[2]))),
  admission_state(),
}
