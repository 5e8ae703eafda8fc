-- Lists the nodes that live.
-- KEYS  nodes by when they were last heard; what they said
-- ARGV  ms until a silent node counts as gone
-- Returns for each, in turn, its name, what it said, and how many ms ago.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local found = {}
local function ms(n) return string.format('%.0f', n) end
local heard = redis.call('ZRANGE', KEYS[1], ms(now - ARGV[1]), ms(now + ARGV[1]), 'BYSCORE', 'WITHSCORES')
for i = 1, #heard, 2 do
  local said = redis.call('HGET', KEYS[2], heard[i])
  if said then
    found[#found + 1] = heard[i]
    found[#found + 1] = said
    found[#found + 1] = ms(math.max(0, now - heard[i + 1]))
  end
end
return found
