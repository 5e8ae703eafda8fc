-- Tells the newest version, and what is here of others.
-- KEYS  numbers; what is known of each version; texts
-- ARGV  number and hash of each version that is asked for
-- Returns the newest number, or 0, what is known of it, and for each version in ARGV: 0 nothing is here, 1 that
-- version, 2 an orphan, 3 that version without its text; or nothing, if there are entries, and none is a version.
local function textless(number)
  local there = redis.pcall('HEXISTS', KEYS[3], number)
  -- Without permission to look, it is there.
  return there == 0 or type(there) == 'table' and string.find(there.err, 'WRONGTYPE', 1, true)
end
local head, _, text = newest(KEYS[1], KEYS[2])
if not head then return {} end
local reply = {head, text or ''}
for i = 1, #ARGV, 2 do
  local has = '0'
  if same(written(KEYS[1], KEYS[2], ARGV[i]), ARGV[i + 1]) then
    has = textless(ARGV[i]) and '3' or '1'
  elseif known(KEYS[2], ARGV[i] .. '-' .. ARGV[i + 1]) then has = '2' end
  reply[#reply + 1] = has
end
return reply
