-- The token bucket that most people write first: a hash with the number of
-- tokens and the time when it was computed.
--
-- KEYS[1]  the counter
-- ARGV[1]  capacity of the bucket, in tokens
-- ARGV[2]  refill rate, in tokens per second
-- ARGV[3]  current time in seconds, by the client's clock
-- ARGV[4]  tokens to take
--
-- Returns 1 if the tokens were taken and 0 if not, and the remaining tokens, rounded down.
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
