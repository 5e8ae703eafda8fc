-- Gets a version.
-- KEYS  metadata by number, or by number-hash for orphans; texts, likewise; orphans
-- ARGV  the number; a prefix of an orphan's hash, or '' for the version that isn't an orphan
-- Returns the version's text and metadata, or an empty reply if it doesn't exist.
local field = ARGV[1]
if ARGV[2] ~= '' then
  field = nil
  for _, member in ipairs(read('ZRANGE', KEYS[3], ARGV[1], ARGV[1], 'BYSCORE') or {}) do
    local begin = ARGV[1] .. '-' .. ARGV[2]
    if string.sub(member, 1, #begin) == begin then field = member end
  end
  if not field then return {} end
end
local text = read('HGET', KEYS[1], field)
if not text then return {} end
return {text, read('HGET', KEYS[2], field) or ''}
