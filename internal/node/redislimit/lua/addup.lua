-- KEYS: a count of each client. ARGV: for each, what to add, and the ms until it is forgotten.
local sums = {}
for i, key in ipairs(KEYS) do
  local add = tonumber(ARGV[2 * i - 1])
  sums[i] = redis.call('INCRBY', key, add)
  if sums[i] == add then
    redis.call('PEXPIRE', key, ARGV[2 * i])
  end
end
return sums
