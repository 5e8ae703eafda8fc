-- Decides acts, one after the other. An act takes tokens (all of its charges or none), gives tokens back, takes back lent
-- tokens, or resets counters.
--
-- KEYS     One key for each charge: the hash of its subject, or of its log. If an act must happen only once, the key that
--          marks it as done follows the keys of its charges. From the last key backwards: two keys for each charge of a
--          policy marked HOLDS, the ends of its holds and their records.
-- ARGV[1]  The time (µs; 0 for Redis' own clock), the minimum TTL (ms), the node, the number of policies and of acts, then
--          for each policy: field, algorithm plus marks, four numbers (see call.encode in script.go)
--          for each act: kind, number of charges, and, if it gives back, for how long (ms) to remember that it
--          happened, or 0 if it may happen more than once; then
--          for each charge: policy (plus GUEST if the charge must not create a counter), n, flags, and
--            if given back, the slot; if lent tokens are taken back, the interval
--            with LEND, how many tokens other requests wait for, and how many more the node wants
--            with CLAIM, the claim: base, time, level, held
--            with HOLD, the hold's id, and either its lifetime (µs) and whether its tokens go back when it ends, or, if
--            given back, how many of its tokens were used
--            RECORDED means: give back only if the hold's record exists. If the first such charge of an act has no record,
--            that charge and all charges after it do nothing.
-- Reply    The time. For each charge that takes: 1 if it fits; 0 if not; 2 if it fits, but Redis has no memory for a new
--          counter or hold; 3 if its hold already exists. Then the counter's field as it is now, or 0, or what log.settle or
--          hold.report returns, and with LEND, how many tokens were lent. For each act that gives back: 1 if it happened now,
--          0 if it had happened before, 2 if there is no memory to mark it as done. At the end, the keys whose data was
--          dropped because it wasn't valid.
--
-- A field of a hash begins with a byte for its form, which determines what follows (see main.lua): a code for the longest
-- time (µs, in four steps per octave) that the counter may take until it is full again, the time of its last change, one or
-- two levels, and, for a bucket that lends, its account.
--
-- Charges that don't lend are decided in one long loop with hardly any functions: Redis creates every function anew at each
-- call of the script, and calling a function, even min or max, costs more than the work that it would do here.
--
-- Every number is an integer below 2^53. A bucket's rate num/den is in millionths of a token per
-- µs, num * den < 2^53, and a * num / den is floor(a / den) * num + floor(a % den * num / den), so
-- no intermediate result is too large.

local TAKE, GIVE_BACK, RESET, TAKE_BACK = 0, 1, 2, 3
local RECORDED = 1 -- a flag of charges that are given back, in place of PEEK
local PEEK, SHADOW, LEND, CLAIM, COUNT_REFUSED, BOOK, AGAIN, HOLD = 1, 2, 4, 8, 16, 32, 64, 128 -- flags
local HOLDS, GIVES_BACK, CALENDAR, DECIMAL = 16, 32, 64, 128 -- marks of a policy, added to its algorithm
local GUEST = 32768
local MAX_TOKENS = 9000000000
local LEAST_CELL = 24 -- of the grid of TTLs: 2^24 µs
local TOKEN_BUCKET, LEAKY_QUEUE, FIXED_WINDOW, SLIDING_LOG, SLIDING_COUNTER, CONCURRENCY = 0, 2, 3, 4, 5, 6

-- Forms of a field. Nodes of the previous version read them, too. So a number is never reused for
-- another layout, and one release learns to read a new form before the next one writes it.
local SMALL, LARGE, PAIR, ACCOUNT, LOG = 241, 242, 243, 244, 245
local SMALL_FIELD, LARGE_FIELD, PAIR_FIELD = '<BBI7I4', '<BBI7i7', '<BBI7I4I4'
local ACCOUNT_FIELD = '<BBI7i7I5I5I7I3B'

local call, pcall, pack, unpack = redis.call, redis.pcall, struct.pack, struct.unpack
local byte, format, floor, ceil, min, max, frexp = string.byte, string.format, math.floor, math.ceil, math.min, math.max, math.frexp

-- A Redis that is out of memory refuses the first command of a script that could allocate memory,
-- unless the script has already run another write. So existing counters are written after a delete
-- that deletes nothing, and keep working. New counters aren't written.
local full = false
local dropped = {}

local body = ARGV[1]
local now, least_ttl, node, policies, acts, at = unpack('<I7I5I3I2I2', body)
if now == 0 then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end

local policy, logs, holds = {}, false, false
for i = 1, policies do
  local field, algorithm, a, b, c, d, after = unpack('<c6BI7I7I7I7', body, at)
  local p = {field = field, algorithm = algorithm, a = a, b = b, c = c, d = d, unit = 1000000}
  policy[i], at = p, after
  if algorithm >= HOLDS then
    -- Charges of a Decimal policy are in millionths, and its windows count millionths.
    if algorithm >= DECIMAL then p.unit, algorithm = 1, algorithm - DECIMAL end
    if algorithm >= CALENDAR then p.calendar, algorithm = true, algorithm - CALENDAR end
    if algorithm >= GIVES_BACK then p.gives_back, algorithm = true, algorithm - GIVES_BACK end
    if algorithm >= HOLDS then p.holds, holds, algorithm = true, true, algorithm - HOLDS end
    p.algorithm = algorithm
  end
  logs = logs or algorithm == SLIDING_LOG
end

