-- Gets a version.
-- KEYS  what is known of each version, by number; texts, by number
-- ARGV  number
-- Returns what is known of it and its text, or nothing if it isn't there.
local known = redis.call('HGET', KEYS[1], ARGV[1])
if not known then return {} end
return {known, redis.call('HGET', KEYS[2], ARGV[1])}
