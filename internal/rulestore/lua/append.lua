-- Writes a version, if the newest is still the one that it is based on, and tells everyone.
-- KEYS  numbers, a sorted set; what is known of each version, by number; texts, by number;
--       nodes by when they were last heard; what they said
-- ARGV  parent; floor; what is known of it, JSON with a nonce; its text; the nonce; ms until a silent node counts as gone; channel
-- Returns its number and 1; or the newest number and 0 if that isn't the parent; or the
-- number that a living node has, and 2, if it is above the parent: it was lost here, and is about to be put back.
local newest = redis.call('ZRANGE', KEYS[1], 0, 0, 'REV')[1] or '0'
if newest ~= ARGV[1] then
  -- Perhaps the answer to this very call was lost before, and it is sent again.
  local after = redis.call('ZRANGE', KEYS[1], '(' .. ARGV[1], '+inf', 'BYSCORE', 'LIMIT', 0, 1)[1]
  if after and cjson.decode(redis.call('HGET', KEYS[2], after)).nonce == ARGV[5] then return {after, '1'} end
  return {newest, '0'}
end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local function ms(n) return string.format('%.0f', n) end
for _, name in ipairs(redis.call('ZRANGE', KEYS[4], ms(now - ARGV[6]), ms(now + ARGV[6]), 'BYSCORE')) do
  local node = redis.call('HGET', KEYS[5], name)
  local has = node and cjson.decode(node).rules or 0
  if has > tonumber(ARGV[1]) then return {ms(has), '2'} end
end
local number = ms(math.max(ARGV[1], ARGV[2]) + 1)
redis.call('HSET', KEYS[3], number, ARGV[4])
redis.call('HSET', KEYS[2], number, ARGV[3])
redis.call('ZADD', KEYS[1], number, number)
redis.call('PUBLISH', ARGV[7], number)
return {number, '1'}
