-- Gets a version.
-- KEYS  what is known of each version, by number, or number-hash; texts, likewise; orphans
-- ARGV  number; how an orphan's hash begins, or '' for the version that isn't one
-- Returns what is known of it and its text, or nothing if it isn't there.
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
