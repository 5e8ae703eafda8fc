-- Writes a new version if its parent is still the newest version, and publishes its number.
-- KEYS  the version numbers (a sorted set); metadata by number (a hash); texts by number (a hash); orphans (a sorted set,
--       scored by number)
-- ARGV  the parent's number; its hash, or ''; a number that the new one must exceed; the new version's metadata (JSON with a
--       nonce); its text; the nonce; the highest version number that a live node has; the channel
-- Returns one of
--   number, 1        the version was written under this number
--   newest, 0, hash  the parent isn't the newest version; this one is
--   number, 2        a live node has this number, which is above the parent: Redis lost that version, and the node will restore it
--   0, 3             there are entries, but none of them is a version
local head, v = newest(KEYS[1], KEYS[2])
if not head then return {'0', '3'} end
if head ~= ARGV[1] or v and ARGV[2] ~= '' and not same(v, ARGV[2]) then
  -- This may be a retry of a call whose reply was lost: then the version with its nonce is already here.
  for _, after in ipairs(redis.call('ZRANGE', KEYS[1], '(' .. ARGV[1], '+inf', 'BYSCORE', 'LIMIT', 0, 8)) do
    local next = known(KEYS[2], after)
    if next and next.nonce == ARGV[6] then return {after, '1'} end
  end
  return {head, '0', v and v.hash or ''}
end
if tonumber(ARGV[7]) > tonumber(ARGV[1]) then return {ARGV[7], '2'} end
ours('ZREM', KEYS[1], KEYS[4])
ours('HDEL', KEYS[2], KEYS[3])
-- Never use a number twice, not even the number of an orphan or of an entry that can't be read anymore.
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
