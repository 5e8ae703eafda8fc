-- Writes values if the old ones are still there.
--
-- KEYS     of the values
-- ARGV     the old ones, or none to read; then for each the new one, empty to delete it, and its TTL (ms)
-- Reply    now (µs), and, if nothing was written, the values that are there
local t = redis.call('TIME')
local reply = {string.format('%.0f', t[1] * 1000000 + t[2])}
local old, same = {}, #ARGV > 0
for i = 1, #KEYS do
  old[i] = redis.call('GET', KEYS[i]) or ''
  reply[i + 1] = old[i]
  same = same and old[i] == ARGV[i]
end
if not same then
  return reply
end
-- A full Redis refuses a new value, unless the script has written before. So new ones are first: either nothing is written, or all.
for i = 1, #KEYS do
  local new, ttl = ARGV[#KEYS + 2 * i - 1], ARGV[#KEYS + 2 * i]
  if old[i] == '' and new ~= '' then
    redis.call('SET', KEYS[i], new, 'PX', ttl)
  end
end
for i = 1, #KEYS do
  local new, ttl = ARGV[#KEYS + 2 * i - 1], ARGV[#KEYS + 2 * i]
  if new == '' then
    redis.call('DEL', KEYS[i])
  elseif new ~= old[i] and old[i] ~= '' then
    -- The TTL first: that is allowed when Redis is full, and then so is the value. Never shorten it: the caller may have
    -- worked it out from an old receipt's numbers.
    redis.call('PEXPIRE', KEYS[i], ttl, 'GT')
    redis.call('SET', KEYS[i], new, 'KEEPTTL')
  end
end
return {reply[1]}
