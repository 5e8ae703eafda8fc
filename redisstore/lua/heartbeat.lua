-- Says that a node lives, and tells how many do, and the secret that they share.
-- KEYS  the nodes, by when they were last heard; the secret
-- ARGV  the node's name; how long (s) a silent node counts as living; a secret, for when there is none
local t = redis.call('TIME')
local now = tonumber(t[1])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], now + ARGV[2], '+inf') -- from before a clock was set back
redis.call('EXPIRE', KEYS[1], 10 * ARGV[2])
if ARGV[3] ~= '' then redis.call('SET', KEYS[2], ARGV[3], 'NX') end
return {redis.call('ZCARD', KEYS[1]), redis.call('GET', KEYS[2])}
