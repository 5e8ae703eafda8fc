-- Returns the newest version, and whether Redis has certain others.
-- KEYS  version numbers; metadata by number, or by number-hash for orphans; texts
-- ARGV  the number and the hash of each version to look for
-- Returns the newest number, or 0 if there is none; its metadata; and for each version in ARGV: 0 if it is missing, 1 if it
-- is here, 2 if it is here as an orphan, 3 if it is here without its text. Returns an empty reply if there are entries, but
-- none of them is a version.
local function textless(number)
  local there = redis.pcall('HEXISTS', KEYS[3], number)
  -- If Weir has no permission to run HEXISTS, assume that the text exists.
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
