-- Lists versions, the newest first, without their texts.
-- KEYS  numbers; what is known of each version
-- ARGV  below which number, or +inf; how many
-- Returns numbers and what is known of each, in turn.
local found = {}
for _, number in ipairs(redis.call('ZRANGE', KEYS[1], ARGV[1], '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, ARGV[2])) do
  found[#found + 1] = number
  found[#found + 1] = redis.call('HGET', KEYS[2], number)
end
return found
