-- Lists the nodes that live.
-- KEYS  nodes by when they were last heard; what they said
-- ARGV  ms until a silent node counts as gone
-- Returns for each, in turn, its name, what it said, and how many ms ago.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local found = {}
local heard = redis.call('ZRANGE', KEYS[1], string.format('%.0f', now - ARGV[1]), '+inf', 'BYSCORE', 'WITHSCORES')
for i = 1, #heard, 2 do
  local said = redis.call('HGET', KEYS[2], heard[i])
  if said then
    found[#found + 1] = heard[i]
    found[#found + 1] = said
    found[#found + 1] = string.format('%.0f', math.max(0, now - heard[i + 1]))
  end
end
return found
