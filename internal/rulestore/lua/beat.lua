-- Says that a node lives and what it has, forgets those that fell silent, and tells the newest version.
-- KEYS  numbers; what is known of each version; nodes by when they were last heard; what they said
-- ARGV  the node's name; what it says, JSON; ms until a silent node counts as gone; number and hash of the version that
--       it has, and of others that it remembers
-- Returns the newest number, what is known of it, and what is here of each version in ARGV: 0 nothing, 1 that
-- version, 2 an orphan; or nothing, if there are entries, and none is a version.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local function ms(n) return string.format('%.0f', n) end
ours('ZREM', KEYS[3])
ours('HDEL', KEYS[4])
redis.call('ZADD', KEYS[3], ms(now), ARGV[1])
redis.call('HSET', KEYS[4], ARGV[1], ARGV[2])
local function forget(from, to)
  for _, name in ipairs(redis.call('ZRANGE', KEYS[3], from, to, 'BYSCORE')) do
    redis.call('ZREM', KEYS[3], name)
    redis.call('HDEL', KEYS[4], name)
  end
end
forget('-inf', ms(now - ARGV[3]))
forget(ms(now + ARGV[3]), '+inf') -- from before a clock was set back
redis.call('PEXPIRE', KEYS[3], ms(10 * ARGV[3]))
redis.call('PEXPIRE', KEYS[4], ms(10 * ARGV[3]))
local head, _, text = newest(KEYS[1], KEYS[2])
if not head then return {} end
local reply = {head, text or ''}
for i = 4, #ARGV, 2 do
  local has = '0'
  if same(written(KEYS[1], KEYS[2], ARGV[i]), ARGV[i + 1]) then has = '1'
  elseif known(KEYS[2], ARGV[i] .. '-' .. ARGV[i + 1]) then has = '2' end
  reply[#reply + 1] = has
end
return reply
