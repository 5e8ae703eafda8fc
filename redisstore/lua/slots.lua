-- Lists the slots of a concurrency limit that are in use, or finds one hold. It writes nothing.
-- KEYS  the counter's holds: their records, and their ends. See hold.lua
-- ARGV  the time (µs), or 0 for Redis' own clock; the maximum number of holds; the id of a hold, or '' for those that end first
-- Returns three values for each hold: its id, its record, and when it ends (µs), or '' if a single hold was asked for.
local now, most, id = tonumber(ARGV[1]), ARGV[2], ARGV[3]
if now == 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- If the key has another type, Weir didn't write it, and the counter has no slots.
local function read(...)
  local r = redis.pcall(...)
  if type(r) ~= 'table' or not r.err then return r end
  if not r.err:find('^WRONGTYPE') then error(r) end
  return {}
end

local found = {}
local function add(of, ends)
  local v = read('HGET', KEYS[1], of)
  if type(v) == 'string' then
    local n = #found
    found[n + 1], found[n + 2], found[n + 3] = of, v, ends
  end
end

if id == '' then
  local all = read('ZRANGE', KEYS[2], string.format('(%.0f', now), '+inf', 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
  for i = 1, #all, 2 do add(all[i], all[i + 1]) end
  return found
end
for _, over in ipairs(read('ZRANGE', KEYS[2], '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', 0, most)) do
  if over == id then return found end
end
add(id, '')
return found
