-- Appends announcements to a stream, and deletes the counts of the clients that they are about.
-- KEYS: the stream, then the count of each client. ARGV: how many announcements the stream keeps, its TTL
-- in seconds, then the announcements.
for i = 3, #ARGV do
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'c', ARGV[i])
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
for i = 2, #KEYS do
  redis.call('DEL', KEYS[i])
end
return 1
