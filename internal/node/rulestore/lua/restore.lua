-- Puts a version back that was lost, or keeps it as an orphan, and tells everyone of the former.
-- KEYS  numbers; what is known of each version; texts; orphans
-- ARGV  number; hash; what is known of it, JSON; its text; channel; 1 if it is to be an orphan
-- Returns 1 if the version is here now as it should be, and 0 if another has its number, or it is an orphan already.
local orphan = ARGV[1] .. '-' .. ARGV[2]
local v = written(KEYS[1], KEYS[2], ARGV[1])
if same(v, ARGV[2]) then
  if not read('HGET', KEYS[3], ARGV[1]) then
    ours('HDEL', KEYS[3])
    redis.call('HSET', KEYS[3], ARGV[1], ARGV[4])
  end
  return {'1'}
end
local known = known(KEYS[2], orphan)
if ARGV[6] == '1' and known then return {'1'} end
if ARGV[6] ~= '1' and (v or known) then return {'0'} end
ours('ZREM', KEYS[1], KEYS[4])
ours('HDEL', KEYS[2], KEYS[3])
if ARGV[6] ~= '1' then
  redis.call('HSET', KEYS[3], ARGV[1], ARGV[4])
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
  redis.call('ZADD', KEYS[1], ARGV[1], ARGV[1])
  redis.call('PUBLISH', ARGV[5], ARGV[1])
else
  redis.call('HSET', KEYS[3], orphan, ARGV[4])
  redis.call('HSET', KEYS[2], orphan, ARGV[3])
  redis.call('ZADD', KEYS[4], ARGV[1], orphan)
end
return {'1'}
