-- ARGV: id, epoch, completions, scored completions, withheld completions, tokens, newest version, bytes
-- Returns {outcome, detail}. A group that is accepted is stored by the first write, which Redis refuses when
-- memory is full: then nothing has changed, and the same insert may be tried again.
local id, epoch, completions, scored = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local group = group_key(id)

local function accept_lease()
  redis.call('ZREM', leases, id)
  count('inserted', 1)
  count('withheld', ARGV[5])
  count('tokens_inserted', ARGV[6])
end

if redis.call('HGET', group, 'inserted') == epoch then
  allow_when_full()
  count('duplicates', 1)
  return {'duplicate', ''}
end
if not holds(id, epoch) then
  allow_when_full()
  count('fenced', 1)
  return {'fenced', ''}
end
local size = redis.call('HGET', group, 'size')
if size ~= completions and completions ~= '0' then
  return {'wrong size', size}
end
if scored < math.min(2, tonumber(size)) then
  accept_lease()
  redis.call('HSET', group, 'inserted', epoch)
  count('filtered:unscored', 1)
  settle(id)
  return {'filtered', 'unscored'}
end
redis.call('HSET', group, 'inserted', epoch, 'tokens', ARGV[6], 'newest', ARGV[7], 'bytes', ARGV[8])
accept_lease()
buffer(id)
return {'accepted', ''}
