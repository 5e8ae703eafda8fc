-- Puts a version back that was lost, unless there is one as new or newer, and tells everyone.
-- KEYS  numbers; what is known of each version; texts
-- ARGV  number; what is known of it, JSON; its text; channel
-- Returns the newest number, and 1 if the version was written.
local newest = redis.call('ZRANGE', KEYS[1], 0, 0, 'REV')[1] or '0'
if tonumber(newest) >= tonumber(ARGV[1]) then return {newest, '0'} end
redis.call('HSET', KEYS[3], ARGV[1], ARGV[3])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[1])
redis.call('PUBLISH', ARGV[4], ARGV[1])
return {ARGV[1], '1'}
