-- Lists the nodes that live.
-- KEYS  the nodes, by when they were last heard (s); what they say
-- ARGV  how long (s) a silent node counts as living
-- Returns for each, in turn, its name, what it says, or nothing, and how many seconds ago it was heard.
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
