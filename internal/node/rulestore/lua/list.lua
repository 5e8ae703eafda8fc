-- Lists versions, newest first, without their texts, and after them the orphans in the same range of numbers.
-- KEYS  version numbers; metadata by number, or by number-hash for orphans; orphans
-- ARGV  the highest number to list, as ZRANGE takes it, or +inf; the maximum number of versions
-- Returns pairs: the number (of an orphan, number-hash), and the metadata.
local found = {}
local count, last = 0, nil
local members = read('ZRANGE', KEYS[1], ARGV[1], '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, ARGV[2] + 16, 'WITHSCORES') or {}
for i = 1, #members, 2 do
  local v, text = nil, nil
  if count < tonumber(ARGV[2]) and isNumber(members[i], members[i + 1]) then v, text = known(KEYS[2], members[i]) end
  if v then
    found[#found + 1] = members[i]
    found[#found + 1] = text
    count, last = count + 1, members[i]
  end
end
if count == 0 and tonumber(ARGV[2]) == 0 then return found end
local down = '-inf'
if count == tonumber(ARGV[2]) then down = last end
for _, member in ipairs(read('ZRANGE', KEYS[3], ARGV[1], down, 'BYSCORE', 'REV', 'LIMIT', 0, 1000) or {}) do
  local v, text = known(KEYS[2], member)
  if v then
    found[#found + 1] = member
    found[#found + 1] = text
  end
end
return found
