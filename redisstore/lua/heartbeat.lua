-- Records that a node is alive.
-- KEYS  the nodes, scored by the time of their last heartbeat (s); their reports about themselves; the shared secret
-- ARGV  the node's name; for how long (s) a silent node counts as alive; a secret to store if there is none, or '' if the node
--       needs none; the minimum length of a secret; the node's report, or ''
-- Returns the number of live nodes, the secret that they share, 1 if an invalid secret had to be replaced and else 0, and the
-- time in seconds and microseconds.
local t = redis.call('TIME')
local now = t[1] + t[2] / 1e6
-- Deletes come first: then even a Redis that is out of memory accepts the writes that follow.
local function ours(key, reply)
  if type(reply) == 'table' and reply.err then redis.call('UNLINK', key) end -- it is of another type
end
ours(KEYS[1], redis.pcall('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2]))
redis.call('ZREMRANGEBYSCORE', KEYS[1], now + ARGV[2], '+inf') -- from before a clock was set back
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('EXPIRE', KEYS[1], 10 * ARGV[2])
local live = redis.call('ZCARD', KEYS[1])
if ARGV[5] ~= '' then
  ours(KEYS[2], redis.pcall('HDEL', KEYS[2], ''))
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[5])
  if redis.call('HLEN', KEYS[2]) > live then -- of nodes that are gone, too
    local said = {}
    for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
      said[name] = redis.call('HGET', KEYS[2], name) or nil
    end
    redis.call('UNLINK', KEYS[2])
    for name, text in pairs(said) do redis.call('HSET', KEYS[2], name, text) end
  end
  redis.call('EXPIRE', KEYS[2], 10 * ARGV[2])
end
local secret, replaced = '', 0
if ARGV[3] ~= '' then
  secret = redis.pcall('GET', KEYS[3])
  if not secret or #secret < tonumber(ARGV[4]) then -- the length of an error is 0
    if secret then replaced = 1 end
    secret = ARGV[3]
    redis.call('SET', KEYS[3], secret)
  end
end
return {live, secret, replaced, t[1], t[2]}
