-- Holds: what single charges leave behind, until they are given back or their time is over. See weir.Holds, whose
-- arithmetic this is.
--
-- A counter's holds are a hash of records by id, each a form, how many tokens it stands for, and the slot that they were
-- debited in; and a sorted set of ids by when they end (µs). The hash of a Concurrency limit has the sum of its slots as
-- well. Nothing here looks at more than 128 holds at once: those that end first, the one that ends last, and the charge's
-- own. A client chooses how many there are.
--
-- If Redis' clock steps back, holds would last too long. A slot that ends more than the limit's window from now is shortened to
-- that. For other holds, the hash has a field that says when the last one was made, and the longest lifetime of each form. If a
-- charge comes before that moment, the clock has stepped back: from then on each charge looks at 128 holds, and shortens those
-- that end later than their form's lifetime from now, until all were looked at.

local hold = false
if holds then
  hold = {}
  local KEPT, RETURNS, RETURNED = 246, 247, 248 -- forms: it stays taken at its end, goes back then, or has done so
  local RECORD, SIZE = '<BI7I7', 15
  local SUM, SUM_RECORD, SUM_FORM, SUM_SIZE = 's', '<BI7', 249, 8
  local SEEN, SEEN_RECORD, SEEN_FORM, SEEN_SIZE = 'l', '<BI7I7I7I7', 250, 29
  local MOST = 128               -- that end in one act
  local DAY = 86400000000        -- µs for which a reservation that went back is remembered
  local DECADE = 316224000000000 -- µs: no bucket is booked deeper than refills in that time
  local HUGE = 2 ^ 53

  local keys = #KEYS -- how many of them are left
  local expired = {} -- in which act, by key
  local spread = _G.unpack

  -- Drops holds that make no sense: the counter has none.
  local function drop(h)
    call('UNLINK', h.records, h.ends)
    dropped[#dropped + 1] = h.records
  end

  -- Reads a key. One of another type isn't ours: the holds are dropped, and nothing is returned.
  local function read(h, ...)
    local r = pcall(...)
    if not r or not r.err then return r end
    if not r.err:find('^WRONGTYPE') then error(r) end
    drop(h)
    return false
  end

  -- Reads a record. Returns its form, or nothing if it isn't there or makes no sense, the tokens and the slot.
  local function record(h, id)
    local v = read(h, 'HGET', h.records, id)
    if v and #v == SIZE then
      local form, n, slot = unpack(RECORD, v)
      if form >= KEPT and form <= RETURNED then return form, n, slot end
    end
    return nil, 0, 0
  end

  -- Reads the field that says when a hold was last made and how long holds last, and the charge's own record.
  local function recall(h)
    local v, _ = read(h, 'HGET', h.records, SEEN)
    h.seen, h.kept, h.returns, h.cursor = 0, 0, 0, 0
    if v and #v == SEEN_SIZE and byte(v) == SEEN_FORM then
      _, h.seen, h.kept, h.returns, h.cursor = unpack(SEEN_RECORD, v)
    end
    if h.id then h.form, h.n, h.slot = record(h, h.id) end
  end

  local function seen(h) return pack(SEEN_RECORD, SEEN_FORM, h.seen, h.kept, h.returns, h.cursor) end

  -- How many slots are taken.
  local function sum(h)
    local v = read(h, 'HGET', h.records, SUM)
    if not v or #v ~= SUM_SIZE then return 0 end
    local form, n = unpack(SUM_RECORD, v)
    return form == SUM_FORM and n or 0
  end

  -- When the hold at a place in the order of ends does so, or 0.
  local function end_at(h, place)
    return min(HUGE, tonumber(call('ZRANGE', h.ends, place, place, 'WITHSCORES')[2] or 0))
  end

  -- Updates how many slots are taken after n were freed. The hash must be there: a new one would have no TTL.
  local function free(h, n)
    local left = sum(h) - n
    if left > 0 then
      call('HSET', h.records, SUM, pack(SUM_RECORD, SUM_FORM, left))
    else
      call('HDEL', h.records, SUM)
    end
  end

  -- Removes the holds whose ids are in gone, and subtracts freed from the slots that are taken. With the last hold, both keys are
  -- deleted by one command. A key that is empty is gone, and while its hash slot moves to another server of a Cluster, the next
  -- command that names it is an error. The script would end there, with the holds removed and their tokens not given back.
  -- Deletes come before other writes, which then succeed even if Redis is out of memory.
  local function remove(h, p, gone, freed)
    if #gone > 0 and call('ZCARD', h.ends) == #gone and (#gone > 1 or call('ZRANGE', h.ends, 0, 0)[1] == gone[1]) then
      call('UNLINK', h.records, h.ends)
      return
    end
    call('HDEL', h.records, '', spread(gone))
    if #gone > 0 then call('ZREM', h.ends, spread(gone)) end
    if p.algorithm == CONCURRENCY and freed > 0 then free(h, freed) end
  end

  -- The window that it is now: its beginning, its count, and that of the window before. See main.lua, which has no time for a
  -- function.
  local function window(p, time, level, prev)
    if p.calendar then
      local t, ends = p.b, p.c
      if now >= ends then t, ends = ends, p.d end
      if now >= ends then t, ends = ends, HUGE end
      if time < t then return t, 0, 0 end
      return time > ends and t or time, level, 0
    end
    if time == 0 or now >= time + 2 * p.b then return max(1, now - now % p.b), 0, 0 end
    if now >= time + p.b then return time + p.b, 0, p.algorithm == SLIDING_COUNTER and level or 0 end
    return min(time, now), level, prev
  end

  -- Gives back what reservations stood for, to the slots that they were debited in. The field's TTL is right already: the
  -- counter is full no later than before. With ahead, a counter is written only if its time lies in the future.
  -- Returns its time before and after.
  local function give_back(key, p, returns, ahead)
    local algorithm = p.algorithm
    local v = algorithm ~= SLIDING_LOG and pcall('HGET', key, p.field)
    if not v or v.err then return end -- untouched; or of another type, which the charge finds
    local form, prev, code, time, level = byte(v), 0
    if form == SMALL and #v == 13 then
      form, code, time, level = unpack(SMALL_FIELD, v)
    elseif form == LARGE and #v == 16 or form == ACCOUNT and #v == 37 then -- of an account, the same: it no longer lends
      form, code, time, level = unpack(LARGE_FIELD, v)
    elseif form == PAIR and #v == 17 then
      form, code, time, level, prev = unpack(PAIR_FIELD, v)
    else
      return
    end
    if ahead and time <= now then return end
    local before = time
    if algorithm <= LEAKY_QUEUE then
      local n = 0
      for i = 1, #returns do n = n + returns[i].n * p.unit end
      time = min(time, now)
      if algorithm == TOKEN_BUCKET then
        level = max(level, min(level + n, p.a))
      else
        level = min(level, max(level - n, 0))
      end
    else
      for i = 1, #returns do
        local n, slot = returns[i].n, returns[i].slot
        local t, l, q = window(p, time, level, prev)
        if slot == t or slot == 0 then
          time, level, prev = t, max(0, l - n), q
        elseif slot == t - p.b and algorithm == SLIDING_COUNTER then
          time, level, prev = t, l, max(0, q - n)
        end
      end
    end
    if algorithm == SLIDING_COUNTER then
      v = pack(PAIR_FIELD, PAIR, code, time, level, prev)
    elseif level < 4294967296 and level >= 0 then
      v = pack(SMALL_FIELD, SMALL, code, time, level)
    else
      v = pack(LARGE_FIELD, LARGE, code, time, level)
    end
    call('HSET', key, p.field, v)
    return before, time
  end

  -- Shortens slots that end more than the limit's window from now, since the clock has stepped back or the window was shortened.
  -- Finds when the last one ends.
  local function anchor_slots(h, p)
    local latest = now + p.b
    h.latest = end_at(h, -1)
    if h.latest <= latest then return end
    for _, id in ipairs(call('ZRANGE', h.ends, format('(%.0f', latest), '+inf', 'BYSCORE', 'LIMIT', 0, MOST)) do
      call('HDEL', h.records, '') -- first: see remove
      call('ZADD', h.ends, latest, id)
    end
    h.latest = end_at(h, -1)
  end

  -- Shortens other holds after the clock has stepped back. If the counter's window lies in the future, it moves to now, and so do
  -- holds that were debited in it.
  local function anchor(h, key, p)
    local from, to
    if now < h.seen then
      h.seen, h.cursor = now, now
      call('HDEL', h.records, '') -- first: see remove
      if p.algorithm == FIXED_WINDOW or p.algorithm == SLIDING_COUNTER then
        from, to = give_back(key, p, {{n = 0, slot = 0}}, true)
      end
    end
    if h.cursor == 0 then return end
    local some = read(h, 'ZRANGE', h.ends, format('(%.0f', h.cursor), '+inf', 'BYSCORE', 'LIMIT', 0, MOST, 'WITHSCORES')
    if not some then return recall(h) end
    call('HDEL', h.records, '')
    local moved = false
    for i = 1, #some, 2 do
      local id, form, n, slot = some[i], record(h, some[i])
      local latest = now + (form == KEPT and h.kept or form == RETURNS and h.returns or DAY)
      moved = tonumber(some[i + 1]) > latest
      if moved then call('ZADD', h.ends, latest, id) end
      if form and from and slot == from then call('HSET', h.records, id, pack(RECORD, form, n, to)) end
    end
    -- If the last one was shortened, others with the same end may be left.
    h.cursor = #some == 2 * MOST and some[2 * MOST] - (moved and 1 or 0) or 0
    call('HSET', h.records, SEEN, seen(h))
    if h.id then h.form, h.n, h.slot = record(h, h.id) end
  end

  -- Ends the holds whose time is over, in the order of their ends. Of reservations that go back, the record stays for a day,
  -- and ends in the same act if that is over, too.
  local function expire(h, key, p)
    local due = read(h, 'ZRANGE', h.ends, '-inf', now, 'BYSCORE', 'LIMIT', 0, MOST, 'WITHSCORES')
    if not due or #due == 0 then return false end
    local gone, freed, returns, over, at = {}, 0, {}, 1, 1
    for _ = 1, MOST do
      local id, ends, back = due[at], tonumber(due[at + 1]), returns[over]
      if back and back.ends <= now and not (ends and ends <= back.ends) then
        gone[#gone + 1], over = back.id, over + 1
      elseif id then
        local form, n, slot = record(h, id)
        if form == RETURNS and p.algorithm ~= CONCURRENCY then
          returns[#returns + 1] = {id = id, ends = ends + DAY, n = n, slot = slot}
        else
          gone[#gone + 1], freed = id, freed + n
        end
        at = at + 2
      else
        break
      end
    end
    remove(h, p, gone, freed)
    if #returns > 0 then give_back(key, p, returns) end
    for i = over, #returns do
      local r = returns[i]
      call('HSET', h.records, r.id, pack(RECORD, RETURNED, r.n, r.slot))
      call('ZADD', h.ends, r.ends, r.id)
    end
    return true
  end

  -- Reads what a charge says of its hold, ends those whose time is over, and finds its own. Returns the holds, with the
  -- form of its own, if that is there; and where the body goes on.
  function hold.look(key, p, kind, first, held, n, at, act)
    local h = {records = KEYS[keys - 1], ends = KEYS[keys], id = false, form = nil}
    keys = keys - 2
    if held and kind == TAKE then
      h.id, h.length, h.back, at = unpack('<c16I7B', body, at)
    elseif held then
      h.id, h.used, at = unpack('<c16I7', body, at)
    end
    local slots = p.algorithm == CONCURRENCY
    if kind == RESET or not first or not (held or p.gives_back or slots) then return h, at end
    if not slots then recall(h) end
    if expired[h.ends] ~= act then -- once, also if several charges name the counter
      expired[h.ends] = act
      if not slots then anchor(h, key, p) end
      if expire(h, key, p) and not slots then recall(h) end
    end
    if slots then
      anchor_slots(h, p)
      if held then h.form, h.n, h.slot = record(h, h.id) end
    end
    if h.form == RETURNED and kind == TAKE then h.form = nil end -- taken anew
    if slots and kind == TAKE then
      h.sum = sum(h)
      -- Holds that have lost one of their keys would be taken for ever, while others come and go.
      if not h.form and n > p.a - h.sum and h.sum > 0 and call('HLEN', h.records) ~= call('ZCARD', h.ends) + 1 then
        drop(h)
        h.sum, h.latest = 0, 0
      end
    end
    return h, at
  end

  -- Makes the hold of a charge that is taken. One that is there stays as it is; a slot is renewed. Returns false if there is
  -- no memory for it.
  function hold.put(h, p, n, slot, guest)
    local slots, ends = p.algorithm == CONCURRENCY, now + h.length
    if h.form and not slots then return true end
    if h.form then
      h.latest = nil
      local r = pcall('ZADD', h.ends, ends, h.id)
      if type(r) == 'table' then
        if not r.err:find('^OOM') then error(r) end
        full = true
        call('HDEL', h.records, '')
        call('ZADD', h.ends, ends, h.id)
      end
    else
      if guest or full then return false end
      local r, v = nil, pack(RECORD, h.back == 1 and RETURNS or KEPT, n, slot)
      if slots then
        h.before = h.latest
        h.sum, h.last = h.sum + n, max(h.before, ends)
        r = pcall('HSET', h.records, h.id, v, SUM, pack(SUM_RECORD, SUM_FORM, h.sum))
      else
        h.seen = now
        if h.back == 1 then h.returns = max(h.returns, h.length) else h.kept = max(h.kept, h.length) end
        r = pcall('HSET', h.records, h.id, v, SEEN, seen(h))
      end
      if type(r) == 'table' then
        if not r.err:find('^OOM') then error(r) end
        full = true
        return false
      end
      call('ZADD', h.ends, ends, h.id)
    end
    local ms = ceil(h.length / 1000)
    if h.back == 1 then ms = ms + DAY / 1000 end
    if call('PTTL', h.records) < ms or call('PTTL', h.ends) < ms then
      ms = max(ms + floor(ms / 8) + 1000, least_ttl)
      call('PEXPIRE', h.records, ms)
      call('PEXPIRE', h.ends, ms)
    end
    return true
  end

  -- Ends the hold of what is given back. Returns how many tokens go back, or, below zero, how many more are taken; and the
  -- slot that they go back to.
  function hold.settle(h, p, n)
    if h.form then
      remove(h, p, {h.id}, h.n)
    else
      call('HDEL', h.records, h.id)
    end
    if p.algorithm == CONCURRENCY then return 0, 0 end
    if not h.form then
      n = min(n - h.used, 0)
    elseif h.form == RETURNED then
      n = -h.used
    else
      n = min(n, h.n) - h.used
    end
    if p.algorithm <= LEAKY_QUEUE then
      local most = MAX_TOKENS * 1000000 / p.unit
      n = max(-most, min(n, most))
    end
    return n, h.slot
  end

  -- Frees n slots, of those that end first, for who can't name the hold that it ends. A hold of more slots than that keeps the
  -- rest.
  function hold.free(h, p, n)
    local gone, freed, id, rest = {}, 0, nil, nil
    for _, first in ipairs(read(h, 'ZRANGE', h.ends, 0, min(n, MOST) - 1) or {}) do
      local form, has, slot = record(h, first)
      if freed + has > n then
        id, rest, freed = first, pack(RECORD, form, freed + has - n, slot), n
        break
      end
      gone[#gone + 1], freed = first, freed + has
    end
    remove(h, p, gone, freed)
    if rest then call('HSET', h.records, id, rest) end
  end

  -- How far from full a bucket may be booked.
  function hold.deepest(p) return max(p.a, min(MAX_TOKENS * 1000000, refill(p, DECADE))) end

  -- What there is to say of slots: when the last one ends, how many are taken, and, where n doesn't fit, when the first one
  -- ends, or, where it was taken, when the last one before it did.
  function hold.report(h, fits, taken)
    return h.last or h.latest or end_at(h, -1), h.sum, taken and h.before or fits and 0 or end_at(h, 0)
  end
end

