-- Tells the newest version.
-- KEYS  numbers; what is known of each version
-- Returns its number, or 0, and what is known of it; or nothing, if there are entries, and none is a version.
local head, _, text = newest(KEYS[1], KEYS[2])
if not head then return {} end
return {head, text or ''}
