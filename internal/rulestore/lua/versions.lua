-- What scripts have in common that look for versions. Entries that Weir didn't write are passed over: a
-- member that isn't a number, a score that isn't the member's, a version of which nothing is known.

-- known returns what is known of a version, by its number, or by number-hash if it is an orphan; or nil.
local function known(about, field)
  local text = redis.call('HGET', about, field)
  if not text then return nil end
  local ok, v = pcall(cjson.decode, text)
  if not ok or type(v) ~= 'table' or type(v.parent) ~= 'number' or type(v.hash or '') ~= 'string' then return nil end
  return v, text
end

local function isNumber(member, score)
  return #member <= 15 and string.find(member, '^[1-9]%d*$') and tonumber(member) == tonumber(score)
end

-- newest returns the newest number, and what is known of it; '0' if there is none; nil if there are entries, and none is a version.
local function newest(numbers, about)
  for from = 0, 1023, 16 do
    local members = redis.call('ZRANGE', numbers, from, from + 15, 'REV', 'WITHSCORES')
    if #members == 0 then
      if from == 0 then return '0' end
      return nil
    end
    for i = 1, #members, 2 do
      if isNumber(members[i], members[i + 1]) then
        local v, text = known(about, members[i])
        if v then return members[i], v, text end
      end
    end
  end
  return nil
end

-- written returns what is known of the version that has a number, or nil.
local function written(numbers, about, number)
  for _, member in ipairs(redis.call('ZRANGE', numbers, number, number, 'BYSCORE')) do
    if member == number then return known(about, number) end
  end
  return nil
end

-- same: a hash that isn't known is from before there were hashes.
local function same(v, hash) return v and (v.hash == nil or v.hash == '' or v.hash == hash) end
