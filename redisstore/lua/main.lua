-- Decides acts, one after the other: takes, each all or nothing over its charges; tokens given back; counters reset.
--
-- KEYS     one for each charge: the hash of its subject, or the list of its log; after those of an act that
--          happens only once, the key that marks it
-- ARGV[1]  now (µs; 0 is Redis' own clock), the least TTL (ms), how many policies and acts, then
--          policies: field, algorithm, four numbers
--          acts: kind, how many charges, how long (ms) to remember an act that happens once (0: it isn't one), then
--          charges: policy, n, slot, flags
-- Reply    now, then for each take and charge: whether it fits, and its state. For each act that gives back: whether it is the first.
--
-- A field holds how long after its time it is whole again (a power of two, µs), the time, and one or two levels.

local TAKE, GIVE_BACK = 0, 1
local PEEK, SHADOW = 1, 2

local function read_policy()
  local p, a, b, c, d = {}
  p.field, p.algorithm, a, b, c, d, at = unpack('<c6BI7I7I7I7', ARGV[1], at)
  if p.algorithm <= LEAKY_QUEUE then
    p.capacity, p.num, p.den, p.max_delay = a, b, c, d
  else
    p.count, p.window, p.tick, p.ticks = a, b, c, d
  end
  return p
end

local function try(p, time, level, prev, n)
  if p.algorithm <= LEAKY_QUEUE then return try_bucket(p, time, level, n) end
  return try_window(p, time, level, prev, n)
end

local function give_back(p, time, level, prev, n, slot)
  if p.algorithm <= LEAKY_QUEUE then return return_bucket(p, time, level, n) end
  return return_window(p, time, level, prev, n, slot)
end

local function memory(p, level)
  if p.algorithm <= LEAKY_QUEUE then return bucket_memory(p, level) end
  if p.algorithm == SLIDING_COUNTER then return 2 * p.window end
  return p.window
end

local function read(key, p)
  local v = call('HGET', key, p.field)
  if not v then return 0, 0, 0 end
  local _, time, level, prev
  if #v == 12 then
    _, time, level = unpack('<BI7I4', v)
    return time, level, 0
  elseif #v == 15 then
    _, time, level = unpack('<BI7I7', v)
    return time, level, 0
  end
  _, time, level, prev = unpack('<BI7I4I4', v)
  return time, level, prev
end

-- Drops the fields of a hash that are whole again.
local function sweep(key)
  local all, dead = call('HGETALL', key), {}
  for i = 1, #all, 2 do
    local span, time = unpack('<BI7', all[i + 1])
    if time + 2 ^ span < now then dead[#dead + 1] = all[i] end
  end
  if #dead > 0 then call('HDEL', key, table_unpack(dead)) end
end

local function write(key, p, time, level, prev)
  local whole = memory(p, level)
  local _, span = frexp(whole)
  local v
  if p.algorithm == SLIDING_COUNTER then
    v = pack('<BI7I4I4', span, time, level, prev)
  elseif level < 4294967296 then
    v = pack('<BI7I4', span, time, level)
  else
    v = pack('<BI7I7', span, time, level)
  end
  if call('HSET', key, p.field, v) == 1 then
    local n = call('HLEN', key)
    if n > 8 and n % 8 == 1 then sweep(key) end
  end
  keep(key, time + whole - now)
end

local table_of_policies = {}
for i = 1, policies do table_of_policies[i] = read_policy() end

local reply, k = {pack('<I7', now)}, 0

local function read_charges(count)
  local charges = {}
  for i = 1, count do
    local c, policy, flags = {}
    policy, c.n, c.slot, flags, at = unpack('<I2I7I7B', ARGV[1], at)
    c.p, c.peek, c.shadow = table_of_policies[policy], flags % 2 == PEEK, flags >= SHADOW
    k = k + 1
    c.key = KEYS[k]
    charges[i] = c
  end
  return charges
end

local function look(c)
  local p = c.p
  if p.algorithm == SLIDING_LOG then
    c.first, c.last = log_prune(c.key, p)
    c.sum = log_sum(c.first, c.last)
    c.fits = c.n <= p.count - c.sum
  else
    c.time, c.level, c.prev = read(c.key, p)
    c.new_time, c.new_level, c.new_prev, c.fits = try(p, c.time, c.level, c.prev, c.n)
  end
end

local function settle_log(c, taken)
  local newest, other = c.last and c.last.time or 0, 0
  if taken then
    log_add(c.key, c.last, c.n)
    keep(c.key, c.p.window)
    c.sum, newest, other = c.sum + c.n, now, newest
  elseif not c.fits and c.n <= c.p.count then
    other = log_retry(c.key, c.p, c.sum, c.n)
  end
  reply[#reply + 1] = pack('<BI7I7I7', c.fits and 1 or 0, newest, c.sum, other)
end

local function settle(c, taken)
  -- A refusal stores nothing but a clock that was brought back.
  if taken or not c.fits and c.new_time ~= c.time then
    write(c.key, c.p, c.new_time, c.new_level, c.new_prev)
  end
  if taken or not c.fits then c.time, c.level, c.prev = c.new_time, c.new_level, c.new_prev end
  reply[#reply + 1] = pack('<BI7I7I7', c.fits and 1 or 0, c.time, c.level, c.prev)
end

local function take(charges)
  local refused = false
  for i = 1, #charges do
    local c = charges[i]
    look(c)
    refused = refused or not c.fits and not c.shadow
  end
  for i = 1, #charges do
    local c = charges[i]
    local taken = c.fits and not refused and not c.peek
    if c.p.algorithm == SLIDING_LOG then settle_log(c, taken) else settle(c, taken) end
  end
end

local function return_all(charges)
  for i = 1, #charges do
    local c = charges[i]
    if c.p.algorithm == SLIDING_LOG then
      log_return(c.key, c.p, c.n, c.slot)
    else
      local time, level, prev = read(c.key, c.p)
      if time ~= 0 then
        local t, l, q = give_back(c.p, time, level, prev, c.n, c.slot)
        if t ~= time or l ~= level or q ~= prev then write(c.key, c.p, t, l, q) end
      end
    end
  end
end

local function reset_all(charges)
  for i = 1, #charges do
    local c = charges[i]
    if c.p.algorithm == SLIDING_LOG then call('DEL', c.key) else call('HDEL', c.key, c.p.field) end
    left[c.key] = nil
  end
end

for _ = 1, acts do
  local kind, count, once
  kind, count, once, at = unpack('<BI2I6', ARGV[1], at)
  local charges = read_charges(count)
  if kind == TAKE then
    take(charges)
  elseif kind == GIVE_BACK then
    local first = true
    if once > 0 then
      k = k + 1
      first = call('SET', KEYS[k], 1, 'NX', 'PX', once) and true
    end
    if first then return_all(charges) end
    reply[#reply + 1] = pack('<B', first and 1 or 0)
  else
    reset_all(charges)
  end
end

return table.concat(reply)
