-- Compare-and-swap: writes new values if all keys still have the expected old ones.
--
-- KEYS     the keys of the values
-- ARGV     nothing, to only read the values; otherwise the expected old value of each key, then for each key
--          its new value (empty to delete the key) and its TTL (ms)
-- Reply    the current time (µs), and, if nothing was written, the current values
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
-- A full Redis refuses to create a key, unless the script has already written something. So new keys are written first: then
-- the script writes either everything or nothing.
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
    -- Set the TTL first: a full Redis allows that command, and after it also the write of the value. Never shorten the TTL:
    -- the caller may have computed it from the numbers of an old receipt.
    redis.call('PEXPIRE', KEYS[i], ttl, 'GT')
    redis.call('SET', KEYS[i], new, 'KEEPTTL')
  end
end
return {reply[1]}
