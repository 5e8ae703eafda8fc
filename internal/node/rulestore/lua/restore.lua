-- Restores a version that was lost and publishes its number, or stores it as an orphan.
-- KEYS  version numbers; metadata by number, or by number-hash for orphans; texts; orphans
-- ARGV  the number; the hash; the metadata (JSON); the text; the channel; 1 to store it as an orphan
-- Returns 1 if Redis now has the version as requested, and 0 if another version has its number, or it already is an orphan.
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
