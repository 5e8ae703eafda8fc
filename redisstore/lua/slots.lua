-- Lists the slots of a Concurrency limit that are taken, or finds those of one hold. It writes nothing.
-- KEYS  the counter's holds: their records, and their ends. See hold.lua
-- ARGV  the time (µs), or 0 for Redis' own; how many at most; the id of a hold, or '' for those that end first
-- Returns for each, in turn, its id, its record, and when it ends (µs), which of a single one is ''.
local now, most, id = tonumber(ARGV[1]), ARGV[2], ARGV[3]
if now == 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- A key of another type isn't ours: the counter has no slots.
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
