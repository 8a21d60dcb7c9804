-- Returns {JSON of each worker: [name, milliseconds of silence, serving version, leases, scoring failure],
-- age of the oldest running lease in milliseconds, who holds it}.
local time = milliseconds()
local held, oldest, holder = {}, 0, ''
for _, set in ipairs({leases, evaluation_leases}) do
  for _, id in ipairs(redis.call('ZRANGE', set, 0, -1)) do
    local known = redis.call('HMGET', group_key(id), 'worker', 'leased_at')
    local worker, age = known[1] or '', time - tonumber(known[2] or time)
    held[worker] = (held[worker] or 0) + 1
    if age >= oldest then
      oldest, holder = age, worker
    end
  end
end
local described = {}
local known = redis.call('HGETALL', workers)
for i = 1, #known, 2 do
  local name, said = known[i], cjson.decode(known[i + 1])
  described[#described + 1] =
    cjson.encode({name, time - said.at, said.serving, held[name] or 0, said.failure or ''})
end
return {described, oldest, holder}
