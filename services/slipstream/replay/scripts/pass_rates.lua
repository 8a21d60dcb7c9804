-- ARGV: prompt ids. Returns {announced version, what is known of each: «correct total version», or ''}.
local found = {}
for i, prompt in ipairs(ARGV) do
  found[i] = redis.call('HGET', pass_rates, prompt) or ''
end
return {counter('version'), found}
