-- The token bucket that most people write first: a hash of what is left and of
-- when that was so.
--
-- KEYS[1]  the counter
-- ARGV[1]  tokens that the bucket holds
-- ARGV[2]  tokens that come back per second
-- ARGV[3]  now, in seconds, by the client's clock
-- ARGV[4]  tokens asked for
--
-- Returns 1 if they were taken, else 0; and what is left, rounded down.
local capacity, rate = tonumber(ARGV[1]), tonumber(ARGV[2])
local now, wanted = tonumber(ARGV[3]), tonumber(ARGV[4])

local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'ts')
local tokens, ts = tonumber(bucket[1]) or capacity, tonumber(bucket[2]) or now
tokens = math.min(capacity, tokens + math.max(0, now - ts) * rate)

local allowed = 0
if tokens >= wanted then
  allowed, tokens = 1, tokens - wanted
end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'ts', now)
redis.call('EXPIRE', KEYS[1], math.ceil(capacity / rate))
return {allowed, math.floor(tokens)}
