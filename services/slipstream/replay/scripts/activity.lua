-- Returns {for each worker the JSON of [name, kind, milliseconds since its last call, serving version, leases,
-- scoring failure, throughput or null], age of the oldest running lease in milliseconds, the worker that holds this lease}.
local time = milliseconds()
local held, oldest, holder = {}, 0, ''
for _, set in ipairs({leases, evaluation_leases}) do
  for _, id in ipairs(redis.call('ZRANGE', set, 0, -1)) do
    local fields = redis.call('HMGET', group_key(id), 'worker', 'leased_at')
    local worker, age = fields[1] or '', time - tonumber(fields[2] or time)
    held[worker] = (held[worker] or 0) + 1
    if age >= oldest then
      oldest, holder = age, worker
    end
  end
end
local described = {}
local states = redis.call('HGETALL', workers)
for i = 1, #states, 2 do
  local name, state = states[i], cjson.decode(states[i + 1])
  described[#described + 1] =
    cjson.encode({name, state.kind or 'actor', time - state.at, state.serving, held[name] or 0, state.failure or '',
      state.throughput or cjson.null})
end
return {described, oldest, holder}
