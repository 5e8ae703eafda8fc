-- Accounts: buckets that lend, or may soon. The arithmetic is that of package ledger. Levels are in millionths of a token and
-- say how much may be taken, even for a leaky bucket.

local SHORT_INTERVAL = 45000 -- µs
local LONG_STREAK = 12

-- Returns how much a bucket refills in a time.
local function refill(p, dt)
  local part = dt % p.c
  return (dt - part) / p.c * p.b + floor(part * p.b / p.c)
end

-- Returns when the interval that contains a moment began.
local function start(p, a, at)
  return at - max(0, at - a.since) % p.d
end

-- Returns the level up to which a bucket may refill while a number of its tokens is out on loan.
local function ceiling(p, out)
  p.slack = p.slack or min(refill(p, 2 * SHORT_INTERVAL), 2 ^ 53)
  return min(p.a, p.a + p.slack - out * 1000000)
end

-- Returns how much may be taken now. The refill that was held back while tokens were out doesn't arrive all at once when their
-- interval ends.
local function level(p, a)
  local l = a.time == 0 and p.a or min(p.a, a.level + refill(p, now - a.time))
  local out = a.lent + a.before
  if out == 0 then return l end
  local ends = start(p, a, a.time) + p.d
  l = min(l, max(ceiling(p, out), a.level) + refill(p, max(0, now - ends)))
  if now >= ends then l = min(l, max(ceiling(p, a.lent), a.level) + refill(p, max(0, now - ends - p.d))) end
  return l
end

-- Moves the account to the current interval, and drops loans from intervals that have ended.
local function roll(p, a)
  if a.lent + a.before == 0 then return end
  local passed = start(p, a, now) - start(p, a, a.time)
  if passed == p.d then
    a.lent, a.before = 0, a.lent
  elseif passed ~= 0 then
    a.lent, a.before = 0, 0
  end
  if a.lent + a.before == 0 and a.node == 0 then a.since = 0 end
end

-- Replaces the account with a node's claim, if the account hasn't changed since the state that the claim is based on. Returns
-- whether it did so.
local function accept(p, a, claim)
  local holds = claim and claim.base == a.time and a.time < now and node ~= 0 and node == a.node or false
  a.time, a.since = min(a.time, now), min(a.since, now)
  if holds then
    roll(p, a)
    local at = max(a.time, min(claim.time, now))
    local l = min(p.a, claim.level + refill(p, max(0, at - claim.time)))
    a.time, a.level, a.lent, a.before = at, min(l, p.a - claim.held * 1000000), claim.held, 0
  end
  return holds
end

-- Records which node asks. Returns whether this node has long been the only one.
local function alone(p, a, n, want)
  local small = 16000000 * n <= p.a and a.time < now
  if a.node == node and node ~= 0 and small and (want > 0 or a.lent + a.before > 0) then
    a.streak = min(a.streak + 1, LONG_STREAK)
    return a.streak == LONG_STREAK and now - a.since >= 2 * p.d
  end
  a.node, a.streak = 0, 0
  if a.lent + a.before == 0 then
    a.since = 0
    if want > 0 and small then a.node, a.since = node, now end
  end
  return false
end

-- Takes n tokens and lends more. Returns whether n fits, how many tokens were lent, and whether the account changed.
local function lend(p, a, n, waiting, want, claim)
  local accepted = accept(p, a, claim)
  local left = level(p, a) - n * 1000000
  if left < 0 then return false, 0, accepted end
  roll(p, a)
  local lent = min(waiting, floor(left / 1000000))
  left = left - lent * 1000000
  local whole, more = floor(left / 1000000), 0
  if p.d == SHORT_INTERVAL then
    more = min(want, floor(whole * 3 / 4))
  elseif alone(p, a, n, want) and 2 * left >= p.a then
    local most = min(floor(max(0, p.a / 1000000 - 32) / 8), floor(refill(p, p.d) / 1000000))
    more = max(0, min(want, floor(whole / 2), most - a.lent - a.before - lent))
  end
  lent = lent + more
  if lent > 0 and a.since == 0 then a.since = now end
  a.lent, a.time, a.level = a.lent + lent, now, left - more * 1000000
  return true, lent, true
end

-- Takes back n lent tokens that weren't spent. Returns whether the account changed.
local function take_back(p, a, n, interval, claim)
  if accept(p, a, claim) then return true end
  local left = level(p, a)
  local b = {time = a.time, lent = a.lent, before = a.before, since = a.since, node = a.node}
  roll(p, b)
  local begun = start(p, b, now)
  if interval > now or interval < begun - p.d then return false end
  if interval >= begun then
    n = min(n, b.lent)
    b.lent = b.lent - n
  else
    n = min(n, b.before)
    b.before = b.before - n
  end
  if n <= 0 then return false end
  if b.lent + b.before == 0 and b.node == 0 then b.since = 0 end
  a.lent, a.before, a.since = b.lent, b.before, b.since
  a.time, a.level = now, min(left + n * 1000000, p.a)
  return true
end

-- Gives back n tokens that were spent.
local function refund(p, a, n)
  a.time, a.since = min(a.time, now), min(a.since, now)
  if a.lent + a.before == 0 then -- no refill is computed, as for a bucket without an account
    a.level = max(a.level, min(a.level + n * 1000000, p.a))
    a.since, a.node, a.streak = 0, 0, 0 -- no claim includes this refund
    return
  end
  local left = level(p, a)
  roll(p, a)
  a.time, a.level = now, max(left, min(left + n * 1000000, ceiling(p, a.lent + a.before)))
end
