-- Compares the emergency list with what a node knows of it, and replaces it if nobody else has.
-- KEYS  the list
-- ARGV  SHA-1 of the text that the node has seen last; the text to write, or '' to write nothing
-- Returns the list's text if the node hasn't seen it, and writes nothing then; otherwise nothing.
local text = redis.call('GET', KEYS[1]) or ''
if redis.sha1hex(text) ~= ARGV[1] then return {text} end
if ARGV[2] ~= '' then redis.call('SET', KEYS[1], ARGV[2]) end
return {}
