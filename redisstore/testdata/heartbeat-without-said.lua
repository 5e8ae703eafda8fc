-- Says that a node lives, and tells how many do, the secret that they share, and whether what was there in its place
-- had to be replaced.
-- KEYS  the nodes, by when they were last heard; the secret
-- ARGV  the node's name; how long (s) a silent node counts as living; a secret, for when there is none, or nothing, if
--       it needs none; how long a secret must be
local t = redis.call('TIME')
local now = tonumber(t[1])
-- What deletes comes first: then even a Redis that is out of memory lets the rest be written.
local silent = redis.pcall('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
if type(silent) == 'table' then redis.call('UNLINK', KEYS[1]) end -- it is of another type
redis.call('ZREMRANGEBYSCORE', KEYS[1], now + ARGV[2], '+inf') -- from before a clock was set back
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('EXPIRE', KEYS[1], 10 * ARGV[2])
local secret, replaced = '', 0
if ARGV[3] ~= '' then
  secret = redis.pcall('GET', KEYS[2])
  if not secret or #secret < tonumber(ARGV[4]) then -- the length of an error is 0
    if secret then replaced = 1 end
    secret = ARGV[3]
    redis.call('SET', KEYS[2], secret)
  end
end
return {redis.call('ZCARD', KEYS[1]), secret, replaced}
