-- Lists the live nodes.
-- KEYS  the nodes, scored by the time of their last heartbeat (s); their reports about themselves
-- ARGV  for how long (s) a silent node counts as alive
-- Returns three values for each node: its name, its report (or ''), and how many seconds ago its last heartbeat was.
local t = redis.call('TIME')
local now = t[1] + t[2] / 1e6
local function number(n) return string.format('%.6f', n) end
local found = {}
local heard = redis.call('ZRANGE', KEYS[1], number(now - ARGV[1]), number(now + ARGV[1]), 'BYSCORE', 'WITHSCORES')
for i = 1, #heard, 2 do
  local said = redis.pcall('HGET', KEYS[2], heard[i])
  if type(said) ~= 'string' then said = '' end
  found[#found + 1] = heard[i]
  found[#found + 1] = said
  found[#found + 1] = number(math.max(0, now - heard[i + 1]))
end
return found
