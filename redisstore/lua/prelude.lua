local call, pack, unpack, table_unpack = redis.call, struct.pack, struct.unpack, unpack
local floor, ceil, min, max, frexp = math.floor, math.ceil, math.min, math.max, math.frexp

local MICRO = 1000000
local TOKEN_BUCKET, LEAKY_QUEUE, SLIDING_LOG, SLIDING_COUNTER = 0, 2, 4, 5

local now, least_ttl, policies, acts, at = unpack('<I7I5I2I2', ARGV[1])
if now == 0 then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- Keeps a key for as long as it matters, and an eighth longer, so that few checks have to say so.
local left = {} -- TTLs that are known; whoever deletes a key forgets its own
local function keep(key, us)
  local ms = ceil(us / 1000)
  if not left[key] then left[key] = call('PTTL', key) end
  if left[key] < ms then
    left[key] = max(ms + floor(ms / 8) + 1000, least_ttl)
    call('PEXPIRE', key, left[key])
  end
end
