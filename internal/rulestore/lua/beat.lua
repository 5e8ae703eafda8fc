-- Says that a node lives and what it has, forgets those that fell silent, and tells the newest version's number.
-- KEYS  numbers; nodes by when they were last heard; what they said
-- ARGV  the node's name; what it says, JSON; ms until a silent node counts as gone
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local function ms(n) return string.format('%.0f', n) end
redis.call('ZADD', KEYS[2], ms(now), ARGV[1])
redis.call('HSET', KEYS[3], ARGV[1], ARGV[2])
local function forget(from, to)
  for _, name in ipairs(redis.call('ZRANGE', KEYS[2], from, to, 'BYSCORE')) do
    redis.call('ZREM', KEYS[2], name)
    redis.call('HDEL', KEYS[3], name)
  end
end
forget('-inf', ms(now - ARGV[3]))
forget(ms(now + ARGV[3]), '+inf') -- from before a clock was set back
redis.call('PEXPIRE', KEYS[2], ms(10 * ARGV[3]))
redis.call('PEXPIRE', KEYS[3], ms(10 * ARGV[3]))
return redis.call('ZRANGE', KEYS[1], 0, 0, 'REV')[1] or '0'
