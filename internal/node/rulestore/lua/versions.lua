-- What scripts have in common that look for versions. Entries that Weir didn't write are passed over: a
-- member that isn't a number, a score that isn't the member's, a version of which nothing is known.

-- read returns what a command does, or nil where the key is of another type: then nothing in it is from Weir.
local function read(...)
  local reply = redis.pcall(...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply) end
  return nil
end

-- ours makes keys fit to be written: one of another type makes way. To remove what isn't there needs no memory, and once a script has
-- written, a Redis that is out of memory lets it go on: the key that fills it may be the one to block.
local function ours(remove, ...)
  for _, key in ipairs({...}) do
    if read(remove, key, '') == nil then redis.call('UNLINK', key) end
  end
end

-- known returns what is known of a version, by its number, or by number-hash if it is an orphan; or nil.
local function known(about, field)
  local text = read('HGET', about, field)
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
    local members = read('ZRANGE', numbers, from, from + 15, 'REV', 'WITHSCORES')
    if not members then return nil end
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
  for _, member in ipairs(read('ZRANGE', numbers, number, number, 'BYSCORE') or {}) do
    if member == number then return known(about, number) end
  end
  return nil
end

-- same: a hash that isn't known is from before there were hashes.
local function same(v, hash) return v and (v.hash == nil or v.hash == '' or v.hash == hash) end
