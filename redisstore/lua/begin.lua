-- Decides acts, one after the other: takes, each all or nothing over its charges; tokens given back; lent tokens
-- taken back; counters reset.
--
-- KEYS     one for each charge: the hash of its subject, or that of its log; after those of an act that
--          happens only once, the key that marks it; and, from the end on backwards, two for each charge of a policy
--          marked HOLDS: the ends of its holds, and their records
-- ARGV[1]  now (µs; 0 is Redis' own clock), the least TTL (ms), the node, how many policies and acts, then
--          policies: field, algorithm and marks, four numbers (see call.encode)
--          acts: kind, how many charges, and, where they are given back, how long (ms) to remember that it
--          happened, if it must happen only once, or 0; then
--          charges: policy (and GUEST more, if it may make no new counter), n, flags, and
--            what is given back, its slot; what is taken back, its interval
--            with LEND, how many others wait for, and how many more the node wants
--            with CLAIM, the claim: base, time, level, held
--            RECORDED means that it goes back only if its hold's record is there. If the first such charge of an act has no record,
--            it and all charges behind it do nothing
--            with HOLD, its id, and how long it lasts (µs) and whether it goes back then, or, where it is given back, how
--            much was used
-- Reply    now, then for each charge that is taken whether it fits (1), doesn't (0), would, but Redis has no memory for a
--          new counter or hold (2), or has its hold already (3), and its field as it is now, or 0, or what log.settle or
--          hold.report says; with LEND, how many it was lent; and for each act that gives back whether it is the first, or
--          can't be marked for lack of memory; then the keys whose data was dropped because it made no sense
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
local RECORDED = 1 -- a flag of charges that are given back, in place of PEEK
local PEEK, SHADOW, LEND, CLAIM, COUNT_REFUSED, BOOK, AGAIN, HOLD = 1, 2, 4, 8, 16, 32, 64, 128 -- flags
local HOLDS, GIVES_BACK, CALENDAR, DECIMAL = 16, 32, 64, 128 -- marks of a policy, added to its algorithm
local GUEST = 32768
local MAX_TOKENS = 9000000000
local LEAST_CELL = 24 -- of the grid of TTLs: 2^24 µs
local TOKEN_BUCKET, LEAKY_QUEUE, FIXED_WINDOW, SLIDING_LOG, SLIDING_COUNTER, CONCURRENCY = 0, 2, 3, 4, 5, 6

-- Forms of a field. Nodes of the version before read them, too: a number never stands for another
-- layout, and a new form is read by one release before the next one writes it.
local SMALL, LARGE, PAIR, ACCOUNT, LOG = 241, 242, 243, 244, 245
local SMALL_FIELD, LARGE_FIELD, PAIR_FIELD = '<BBI7I4', '<BBI7i7', '<BBI7I4I4'
local ACCOUNT_FIELD = '<BBI7i7I5I5I7I3B'

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

local policy, logs, holds = {}, false, false
for i = 1, policies do
  local field, algorithm, a, b, c, d, after = unpack('<c6BI7I7I7I7', body, at)
  local p = {field = field, algorithm = algorithm, a = a, b = b, c = c, d = d, unit = 1000000}
  policy[i], at = p, after
  if algorithm >= HOLDS then
    -- Millionths are what a Decimal policy is asked for, and what its window counts.
    if algorithm >= DECIMAL then p.unit, algorithm = 1, algorithm - DECIMAL end
    if algorithm >= CALENDAR then p.calendar, algorithm = true, algorithm - CALENDAR end
    if algorithm >= GIVES_BACK then p.gives_back, algorithm = true, algorithm - GIVES_BACK end
    if algorithm >= HOLDS then p.holds, holds, algorithm = true, true, algorithm - HOLDS end
    p.algorithm = algorithm
  end
  logs = logs or algorithm == SLIDING_LOG
end

