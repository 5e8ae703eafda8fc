-- Writes a version, if the newest is still the one that it is based on, and tells everyone.
-- KEYS  numbers, a sorted set; what is known of each version, by number; texts, by number; orphans, a sorted set by number
-- ARGV  parent; its hash, or ''; floor; what is known of it, JSON with a nonce; its text; the nonce; the highest number that
--       a living node has; channel
-- Returns its number and 1; or the newest number, 0 and its hash if that isn't the parent; or the
-- number that a living node has, and 2, if it is above the parent: it was lost here, and is about to be put back;
-- or 0 and 3 if there are entries, and none is a version.
local head, v = newest(KEYS[1], KEYS[2])
if not head then return {'0', '3'} end
if head ~= ARGV[1] or v and ARGV[2] ~= '' and not same(v, ARGV[2]) then
  -- Perhaps the answer to this very call was lost before, and it is sent again.
  for _, after in ipairs(redis.call('ZRANGE', KEYS[1], '(' .. ARGV[1], '+inf', 'BYSCORE', 'LIMIT', 0, 8)) do
    local next = known(KEYS[2], after)
    if next and next.nonce == ARGV[6] then return {after, '1'} end
  end
  return {head, '0', v and v.hash or ''}
end
if tonumber(ARGV[7]) > tonumber(ARGV[1]) then return {ARGV[7], '2'} end
ours('ZREM', KEYS[1], KEYS[4])
ours('HDEL', KEYS[2], KEYS[3])
-- No number is given twice, not even an orphan's, or that of an entry that can't be read any more.
local highest = math.max(ARGV[1], ARGV[3])
for _, key in ipairs({KEYS[1], KEYS[4]}) do
  local score = tonumber(redis.call('ZRANGE', key, 0, 0, 'REV', 'WITHSCORES')[2] or 0)
  if score < 1e15 then highest = math.max(highest, math.floor(score)) end
end
local number = string.format('%.0f', highest + 1)
redis.call('HSET', KEYS[3], number, ARGV[5])
redis.call('HSET', KEYS[2], number, ARGV[4])
redis.call('ZADD', KEYS[1], number, number)
redis.call('PUBLISH', ARGV[8], number)
return {number, '1'}
