-- ARGV: prompt ids. Returns {announced version, for each prompt 'correct total version', or '' if it is not stored}.
local stored = {}
for i, prompt in ipairs(ARGV) do
  stored[i] = redis.call('HGET', pass_rates, prompt) or ''
end
return {counter('version'), stored}
