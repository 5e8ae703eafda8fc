-- Adds to counts, and returns the new ones.
-- KEYS: one count for each client. ARGV: for each key, the number to add, and the TTL of a new count in ms.
local sums = {}
for i, key in ipairs(KEYS) do
  local add = tonumber(ARGV[2 * i - 1])
  sums[i] = redis.call('INCRBY', key, add)
  if sums[i] == add then
    redis.call('PEXPIRE', key, ARGV[2 * i])
  end
end
return sums
