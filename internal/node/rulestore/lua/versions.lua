-- Functions shared by the scripts that look up versions. They skip entries that Weir didn't write: members that aren't
-- numbers, members with another number as their score, and versions without metadata.

-- read returns the reply to a command, or nil if the key has another type, because then Weir didn't write it.
local function read(...)
  local reply = redis.pcall(...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply) end
  return nil
end

-- ours prepares keys for writes: it deletes those that have another type. It also runs a command that removes nothing, which
-- needs no memory. After such a write, a Redis that is out of memory lets the script continue. That matters because the key that
-- fills Redis may be the one to block.
local function ours(remove, ...)
  for _, key in ipairs({...}) do
    if read(remove, key, '') == nil then redis.call('UNLINK', key) end
  end
end

-- known returns the metadata of a version, decoded and as text, by its number, or by number-hash if it is an orphan. It
-- returns nil if there is none, or if it isn't valid.
local function known(about, field)
  local text = read('HGET', about, field)
  if not text then return nil end
  local ok, v = pcall(cjson.decode, text)
  if not ok or type(v) ~= 'table' or type(v.parent) ~= 'number' or type(v.hash) ~= 'string' then return nil end
  return v, text
end

local function isNumber(member, score)
  return #member <= 15 and string.find(member, '^[1-9]%d*$') and tonumber(member) == tonumber(score)
end

-- newest returns the newest number and its metadata. It returns '0' if there are no entries, and nil if there are entries,
-- but none of them is a version.
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

-- written returns the metadata of the version with a given number, or nil.
local function written(numbers, about, number)
  for _, member in ipairs(read('ZRANGE', numbers, number, number, 'BYSCORE') or {}) do
    if member == number then return known(about, number) end
  end
  return nil
end

-- same reports whether a version has a given hash.
local function same(v, hash) return v and v.hash == hash end
