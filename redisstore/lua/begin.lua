-- Decides acts, one after the other: takes, each all or nothing over its charges; tokens given back; lent tokens
-- taken back; counters reset.
--
-- KEYS     one for each charge: the hash of its subject, or that of its log; after those of an act that
--          happens only once, the key that marks it
-- ARGV[1]  now (µs; 0 is Redis' own clock), the least TTL (ms), the node, how many policies and acts, then
--          policies: field, algorithm, four numbers (see call.encode)
--          acts: kind, how many charges, and, where they are given back, how long (ms) to remember that it
--          happened, if it must happen only once, or 0; then
--          charges: policy (and GUEST more, if it may make no new counter), n, flags, and
--            what is given back, its slot; what is taken back, its interval
--            with LEND, how many others wait for, and how many more the node wants
--            with CLAIM, the claim: base, time, level, held
-- Reply    now, then for each charge that is taken whether it fits (1), doesn't (0), or would, but Redis has no memory for a
--          new counter (2), and its field as it is now, or 0, or what log.settle says; with LEND, how many it was lent; and
--          for each act that gives back whether it is the first, or can't be marked for lack of memory; then the keys
--          whose data was dropped because it made no sense
--
-- A field of a hash begins with its form, which tells what follows (see main.lua): a code for how
-- long after its time the counter is full again at the latest (µs, in four steps an octave), the
-- time, one or two levels, and, for a bucket that lends, its account.
--
-- Charges that don't lend are decided in one long loop with hardly a function. Redis creates every
-- function at every script call, and calling one, even min or max, costs more than its work here.
--
-- Every number is an integer below 2^53. A bucket's rate num/den is in millionths of a token per
-- µs, num * den < 2^53, and a * num / den is floor(a / den) * num + floor(a % den * num / den):
-- nothing on the way is too large.

local TAKE, GIVE_BACK, RESET, TAKE_BACK = 0, 1, 2, 3
local PEEK, SHADOW, LEND, CLAIM, COUNT_REFUSED, BOOK, AGAIN = 1, 2, 4, 8, 16, 32, 64 -- flags
local GUEST = 32768
local MAX_TOKENS = 9000000000
local LEAST_CELL = 24 -- of the grid of TTLs: 2^24 µs
local TOKEN_BUCKET, LEAKY_QUEUE, SLIDING_LOG, SLIDING_COUNTER = 0, 2, 4, 5

local call, pcall, pack, unpack = redis.call, redis.pcall, struct.pack, struct.unpack
local byte, format, floor, ceil, min, max, frexp = string.byte, string.format, math.floor, math.ceil, math.min, math.max, math.frexp

-- A Redis that is out of memory refuses a script's first command that could take memory, unless the
-- script has run another write before. So existing counters are written after a delete that deletes
-- nothing, and go on. New counters aren't written.
local full = false
local dropped = {}

local body = ARGV[1]
local now, least_ttl, node, policies, acts, at = unpack('<I7I5I3I2I2', body)
if now == 0 then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end

local policy, logs = {}, false
for i = 1, policies do
  local field, algorithm, a, b, c, d, after = unpack('<c6BI7I7I7I7', body, at)
  policy[i], at = {field = field, algorithm = algorithm, a = a, b = b, c = c, d = d}, after
  logs = logs or algorithm == SLIDING_LOG
end

