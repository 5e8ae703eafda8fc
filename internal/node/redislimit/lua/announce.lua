-- KEYS: the announcements, then a count of each client that they are about. ARGV: how many
-- announcements are kept, for how many seconds, then the announcements.
for i = 3, #ARGV do
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'c', ARGV[i])
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
for i = 2, #KEYS do
  redis.call('DEL', KEYS[i])
end
return 1
