-- Reads the emergency list if it has changed. If it hasn't, replaces it.
-- KEYS  the list
-- ARGV  SHA-1 of the text that the node saw last; the text to write, or '' to write nothing
-- Returns the list's text, without writing, if the node hasn't seen it; otherwise an empty reply.
local text = redis.call('GET', KEYS[1]) or ''
if redis.sha1hex(text) ~= ARGV[1] then return {text} end
if ARGV[2] ~= '' then redis.call('SET', KEYS[1], ARGV[2]) end
return {}
