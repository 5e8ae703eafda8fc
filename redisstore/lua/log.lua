-- Sliding log: a hash of the amounts that were admitted in the window, as records of a time and an amount, oldest first.
--
-- Field 'h', the header, says where the log begins, and has its sum and the tail: the newest records, up to FAN of them. When
-- the tail is full, it becomes a leaf in a field of its own. Leaves are numbered from 0. A record of level 1 stands for a leaf:
-- it has the time of the leaf's newest record, and the sum of its amounts. FAN such records form a node, which one record of
-- level 2 stands for, and so on. So a search can skip whole nodes, and an amount can be subtracted anywhere, with a few reads
-- however long the log is. That matters because clients determine how long a log gets and what is searched for, and Redis
-- serves no other command meanwhile.

local log = {}
if logs then
  local HEADER, HEAD = '<I5I5BI5I7I6', 29 -- leaves, head, offset, dropped, first, sum: see read
  local RECORD, SIZE = '<I7I6', 13
  local FAN = 16
  local sub, HUGE = string.sub, math.huge

  local function name(level, number) return pack('<BI5', level, number) end

  -- Drops a log that isn't valid: the counter starts with an empty one.
  local function drop(key)
    call('UNLINK', key)
    dropped[#dropped + 1] = key
    return nil
  end

  -- Writes a field of an existing log, even if Redis is out of memory.
  local function set(key, field, value)
    local r = pcall('HSET', key, field, value)
    if r == 0 or r == 1 then return end
    if not r.err:find('^OOM') then error(r) end
    full = true
    call('HDEL', key, '')
    call('HSET', key, field, value)
  end

  local function read(key)
    local v = pcall('HGET', key, 'h')
    if not v then return nil end
    if v.err and not v.err:find('^WRONGTYPE') then error(v) end
    if #v < HEAD + SIZE or (#v - HEAD) % SIZE > 0 then return drop(key) end
    local h = {tail = sub(v, HEAD + 1)}
    -- leaves: how many leaves there are. head: the leaf in which the window begins, or leaves if it begins in the tail. offset:
    -- how many records of the head have left the window. dropped: how many leaves were deleted. first: the time of the
    -- oldest record. sum: the sum of the window's amounts.
    h.leaves, h.head, h.offset, h.dropped, h.first, h.sum = unpack(HEADER, v)
    h.time, h.amount = unpack(RECORD, v, #v - SIZE + 1) -- the newest record
    return h
  end

  -- Writes the header, and deletes up to four leaves that have left the window. That is more than are added in the same time.
  local function write(key, h)
    for _ = 1, min(4, h.head - h.dropped) do
      call('HDEL', key, name(0, h.dropped))
      h.dropped = h.dropped + 1
      local level, number = 1, h.dropped
      while number % FAN == 0 do
        number = number / FAN
        call('HDEL', key, name(level, number - 1))
        level = level + 1
      end
    end
    set(key, 'h', pack(HEADER, h.leaves, h.head, h.offset, h.dropped, h.first, h.sum) .. h.tail)
  end

  local function keep(key, p)
    local ms = ceil(p.b / 1000)
    if call('PTTL', key) < ms then call('PEXPIRE', key, max(ms + floor(ms / 8) + 1000, least_ttl)) end
  end

  -- Finds the first record in the window that is newer than `after`, or at which the running sum reaches `reach`. With in_tail,
  -- it looks only in the tail. Returns the record's leaf, its position there, its time, its amount, the sum of the records
  -- before it, and the leaf's text.
  local function seek(key, h, after, reach, in_tail)
    local p, at, sum = h.head, 1 + SIZE * h.offset, 0
    if in_tail and p < h.leaves then p, at = h.leaves, 1 end
    while true do
      local leaf = p >= h.leaves and h.tail or call('HGET', key, name(0, p)) or ''
      for i = at, #leaf - SIZE + 1, SIZE do
        local time, amount = unpack(RECORD, leaf, i)
        if time > after or sum + amount >= reach then return p, i, time, amount, sum, leaf end
        sum = sum + amount
      end
      if p >= h.leaves then return nil end
      -- Go to the next leaf that may have the record: up a level when a whole node lies ahead, down when a node can't be skipped.
      local level, q, up, node, held = 1, p + 1, true
      while true do
        local count = floor(h.leaves / FAN ^ (level - 1))
        local parent = floor(q / FAN)
        if up and q % FAN == 0 and parent < floor(count / FAN) then
          level, q, held = level + 1, parent, nil
        elseif q >= count then
          if level == 1 then break end
          level, q, held = level - 1, q * FAN, nil
        else
          if held ~= parent then node, held = call('HGET', key, name(level, parent)) or '', parent end
          local i, time, amount = 1 + SIZE * (q % FAN), 0, 0
          if i < #node then time, amount = unpack(RECORD, node, i) end
          if amount > 0 and (time > after or sum + amount >= reach) then
            if level == 1 then break end
            level, q, up, held = level - 1, q * FAN, false, nil
          else
            sum, q, up = sum + amount, q + 1, true
          end
        end
      end
      p, at = q, 1
    end
  end

  -- Turns the tail into a leaf, and records it in the levels above.
  local function flush(key, h)
    local level, number, node, time = 0, h.leaves, h.tail, h.time
    set(key, name(0, number), node)
    h.leaves, h.tail = number + 1, ''
    repeat
      local sum = 0
      for i = 1, #node, SIZE do
        local _, amount = unpack(RECORD, node, i)
        sum = sum + amount
      end
      level = level + 1
      local at, field = number % FAN, name(level, floor(number / FAN))
      node = at > 0 and call('HGET', key, field) or ''
      node = sub(node, 1, at * SIZE) -- drops records of leaves that no longer exist
      node = node .. string.rep('\0', at * SIZE - #node) .. pack(RECORD, time, sum)
      set(key, field, node)
      number = floor(number / FAN)
    until at < FAN - 1
  end

  -- Reads a log, merges records in the future into one record at the current time, and drops records that have left the window.
  -- Returns nil if none are left.
  local function load(key, p)
    local h, changed = read(key), false
    if not h then return nil end
    if h.time > now then
      local leaf, at, _, _, before, text = seek(key, h, now - 1, HUGE)
      if not leaf or before >= h.sum then return drop(key) end
      h.leaves, h.time, h.amount = leaf, now, h.sum - before
      h.tail = sub(text, 1, at - 1) .. pack(RECORD, now, h.amount)
      h.first, changed = min(h.first, now), true
    end
    if h.time <= now - p.b then
      call('UNLINK', key)
      return nil
    end
    if h.first <= now - p.b then
      local leaf, at, time, _, before = seek(key, h, now - p.b, HUGE)
      if not leaf or before >= h.sum then return drop(key) end
      h.head, h.offset, h.first, h.sum, changed = leaf, (at - 1) / SIZE, time, h.sum - before, true
    end
    if changed then write(key, h) end -- now, since another charge of this call may read the same log
    return h
  end

  -- Returns whether n fits, the log, and its sum.
  function log.look(key, p, n)
    local h = load(key, p)
    local sum = h and h.sum or 0
    return n <= p.a - sum, h, sum
  end

  -- Takes n if taken is set. Returns the time of the newest record, the sum, and a third time: if n doesn't fit, the time of
  -- the record that must leave the window before n fits; if n was taken, the time of the newest record before it. Returns nil
  -- if there is no memory for a new log.
  function log.settle(key, p, n, fits, h, sum, taken, guest)
    local newest = h and h.time or 0
    if taken then
      local new = not h
      h = h or {leaves = 0, head = 0, offset = 0, dropped = 0, first = now, tail = ''}
      h.sum = sum + n
      if new then
        local r = not (full or guest) and pcall('HSET', key, 'h', '')
        if r and r ~= 1 then
          if not r.err:find('^OOM') then error(r) end
          full = true
        end
        if full or guest then return nil end
      end
      if newest == now then
        h.tail = sub(h.tail, 1, -SIZE - 1) .. pack(RECORD, now, h.amount + n)
      else
        if #h.tail >= FAN * SIZE then flush(key, h) end
        h.tail = h.tail .. pack(RECORD, now, n)
      end
      write(key, h)
      keep(key, p)
      return now, sum + n, newest
    end
    if fits or n > p.a then return newest, sum, 0 end
    local _, _, moment = seek(key, h, HUGE, sum + n - p.a)
    return newest, sum, moment or now
  end

  -- Subtracts an amount from a leaf by writing its new text, and from the records above it. If a leaf or node becomes empty, it
  -- is deleted and only the record above it stays. So clients that take and give back leave almost nothing behind.
  local function reduce(key, h, leaf, text, part)
    if text ~= '' then set(key, name(0, leaf), text) end
    local level, number, count = 1, leaf, h.leaves
    while number < count do
      local field, at = name(level, floor(number / FAN)), 1 + SIZE * (number % FAN)
      local node = call('HGET', key, field) or ''
      if at > #node then return end
      local time, amount = unpack(RECORD, node, at)
      set(key, field, sub(node, 1, at - 1) .. pack(RECORD, time, max(0, amount - part)) .. sub(node, at + SIZE))
      if amount <= part then call('HDEL', key, name(level - 1, number)) end
      level, number, count = level + 1, floor(number / FAN), floor(count / FAN)
    end
  end

  -- Subtracts n from the amount that was admitted at the slot's time.
  function log.give_back(key, p, n, slot)
    local h = load(key, p)
    if not h then return end
    local leaf, at, time, amount, _, text = seek(key, h, slot - 1, HUGE, slot >= unpack(RECORD, h.tail))
    if time ~= slot then return end
    local part = min(n, amount)
    h.sum = h.sum - part
    if h.sum <= 0 then
      call('UNLINK', key)
      return
    end
    text = sub(text, 1, at - 1) .. (part < amount and pack(RECORD, time, amount - part) or '') .. sub(text, at + SIZE)
    if leaf < h.leaves then
      reduce(key, h, leaf, text, part)
    elseif text ~= '' then
      h.tail = text
    else -- the log ends in an older leaf now
      h.tail = ''
      leaf, at, _, _, _, text = seek(key, h, HUGE, h.sum)
      if not leaf then return drop(key) end
      h.leaves, h.tail = leaf, sub(text, 1, at + SIZE - 1)
    end
    write(key, h)
  end
end

