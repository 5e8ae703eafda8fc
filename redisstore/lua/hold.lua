-- Holds: the reservations and slots that charges leave behind until they are given back or expire. The arithmetic is that of
-- weir.Holds.
--
-- A counter's holds consist of a hash of records by id and a sorted set of ids scored by when they end (µs). A record has a
-- form, a number of tokens, and the slot in which they were debited. For a concurrency limit, the hash also has the sum of its
-- slots. Clients determine how many holds there are, so no function here reads more than about 128 of them: those that end
-- first, the one that ends last, and the charge's own.
--
-- If Redis' clock steps back, holds would last too long. A slot that ends more than the limit's window from now is shortened to
-- that. For other holds, the hash has a field that says when the last one was made, and the longest lifetime of each form. If a
-- charge comes before that moment, the clock has stepped back: from then on each charge looks at 128 holds, and shortens those
-- that end later than their form's lifetime from now, until all were looked at.

local hold = false
if holds then
  hold = {}
  local KEPT, RETURNS, RETURNED = 246, 247, 248 -- forms: at the hold's end, tokens stay taken, or go back, or went back already
  local RECORD, SIZE = '<BI7I7', 15
  local SUM, SUM_RECORD, SUM_FORM, SUM_SIZE = 's', '<BI7', 249, 8
  local SEEN, SEEN_RECORD, SEEN_FORM, SEEN_SIZE = 'l', '<BI7I7I7I7', 250, 29
  local MOST = 128               -- holds that end in one act, at most
  local DAY = 86400000000        -- µs for which a reservation that went back is remembered
  local DECADE = 316224000000000 -- µs: no bucket gets a debt that takes longer than this to refill
  local HUGE = 2 ^ 53

  local keys = #KEYS -- how many keys are left to use: holds use them from the end
  local expired = {} -- by key: the act in which its holds were expired
  local spread = _G.unpack

  -- Drops holds that aren't valid: the counter then has none.
  local function drop(h)
    call('UNLINK', h.records, h.ends)
    dropped[#dropped + 1] = h.records
  end

  -- Runs a command that reads a key. If the key has another type, Weir didn't write it: drops the holds and returns false.
  local function read(h, ...)
    local r = pcall(...)
    if not r or not r.err then return r end
    if not r.err:find('^WRONGTYPE') then error(r) end
    drop(h)
    return false
  end

  -- Reads a record. Returns its form, its tokens and its slot. The form is nil if the record is missing or not valid.
  local function record(h, id)
    local v = read(h, 'HGET', h.records, id)
    if v and #v == SIZE then
      local form, n, slot = unpack(RECORD, v)
      if form >= KEPT and form <= RETURNED then return form, n, slot end
    end
    return nil, 0, 0
  end

  -- Reads the field that says when the last hold was made and how long holds last, and the charge's own record.
  local function recall(h)
    local v, _ = read(h, 'HGET', h.records, SEEN)
    h.seen, h.kept, h.returns, h.cursor = 0, 0, 0, 0
    if v and #v == SEEN_SIZE and byte(v) == SEEN_FORM then
      _, h.seen, h.kept, h.returns, h.cursor = unpack(SEEN_RECORD, v)
    end
    if h.id then h.form, h.n, h.slot = record(h, h.id) end
  end

  local function seen(h) return pack(SEEN_RECORD, SEEN_FORM, h.seen, h.kept, h.returns, h.cursor) end

  -- Returns how many slots are in use.
  local function sum(h)
    local v = read(h, 'HGET', h.records, SUM)
    if not v or #v ~= SUM_SIZE then return 0 end
    local form, n = unpack(SUM_RECORD, v)
    return form == SUM_FORM and n or 0
  end

  -- Returns when the hold at a given place in the order of ends will end, or 0 if there is none.
  local function end_at(h, place)
    return min(HUGE, tonumber(call('ZRANGE', h.ends, place, place, 'WITHSCORES')[2] or 0))
  end

  -- Updates the number of slots in use after n were freed. The hash must exist: a new one would have no TTL.
  local function free(h, n)
    local left = sum(h) - n
    if left > 0 then
      call('HSET', h.records, SUM, pack(SUM_RECORD, SUM_FORM, left))
    else
      call('HDEL', h.records, SUM)
    end
  end

  -- Removes the holds whose ids are in gone, and subtracts freed from the number of slots in use. When the last hold goes, one
  -- command deletes both keys. Otherwise Redis would delete a key when it becomes empty. While a Cluster moves the key's hash
  -- slot to another server, the next command with that key would fail, and the script would end after it removed the holds and
  -- before it gave back their tokens. Deletes come before other writes, which then succeed even if Redis is out of memory.
  local function remove(h, p, gone, freed)
    if #gone > 0 and call('ZCARD', h.ends) == #gone and (#gone > 1 or call('ZRANGE', h.ends, 0, 0)[1] == gone[1]) then
      call('UNLINK', h.records, h.ends)
      return
    end
    call('HDEL', h.records, '', spread(gone))
    if #gone > 0 then call('ZREM', h.ends, spread(gone)) end
    if p.algorithm == CONCURRENCY and freed > 0 then free(h, freed) end
  end

  -- Returns the current window: its beginning, its count, and the count of the previous window. main.lua does the same without a
  -- function, to save time.
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

  -- Gives back the tokens of reservations to the slots in which they were debited. The field's TTL can stay, because the counter
  -- is full again no later than before. With ahead, the counter is written only if its time lies in the future.
  -- Returns the counter's time before and after.
  local function give_back(key, p, returns, ahead)
    local algorithm = p.algorithm
    local v = algorithm ~= SLIDING_LOG and pcall('HGET', key, p.field)
    if not v or v.err then return end -- untouched, or the key has another type: then the charge will find out
    local form, prev, code, time, level = byte(v), 0
    if form == SMALL and #v == 13 then
      form, code, time, level = unpack(SMALL_FIELD, v)
    elseif form == LARGE and #v == 16 or form == ACCOUNT and #v == 37 then -- drops the account: the bucket no longer lends
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

  -- Shortens slots that end more than the limit's window from now, which happens after the clock steps back or the window is
  -- shortened. Finds when the last slot ends.
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

  -- Shortens holds other than slots after the clock has stepped back. If the counter's window lies in the future, moves that window
  -- and the holds that were debited in it to now.
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
    -- If the last hold was shortened, there may be more with the same end.
    h.cursor = #some == 2 * MOST and some[2 * MOST] - (moved and 1 or 0) or 0
    call('HSET', h.records, SEEN, seen(h))
    if h.id then h.form, h.n, h.slot = record(h, h.id) end
  end

  -- Ends the holds that have expired, in the order of their ends. The record of a reservation that goes back stays for another
  -- day. If that day is also over, the record is removed in the same act.
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

  -- Reads the charge's fields about its hold, ends the counter's expired holds, and finds the charge's own hold. Returns the
  -- holds, with the form of the charge's own if that exists, and the position at which the body continues.
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
    if expired[h.ends] ~= act then -- only once per act, even if several charges name the counter
      expired[h.ends] = act
      if not slots then anchor(h, key, p) end
      if expire(h, key, p) and not slots then recall(h) end
    end
    if slots then
      anchor_slots(h, p)
      if held then h.form, h.n, h.slot = record(h, h.id) end
    end
    if h.form == RETURNED and kind == TAKE then h.form = nil end -- the charge makes a new hold
    if slots and kind == TAKE then
      h.sum = sum(h)
      -- If one of the two keys was lost, its slots would stay in use forever while other slots come and go. So drop the holds.
      if not h.form and n > p.a - h.sum and h.sum > 0 and call('HLEN', h.records) ~= call('ZCARD', h.ends) + 1 then
        drop(h)
        h.sum, h.latest = 0, 0
      end
    end
    return h, at
  end

  -- Makes the hold of a charge that takes. An existing reservation stays as it is, and an existing slot is renewed. Returns
  -- false if there is no memory for the hold.
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

  -- Ends the hold of a charge that is given back. Returns how many tokens go back (if negative, how many more are taken), and the
  -- slot to which they go back.
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

  -- Frees the n slots that end first, for callers that can't name the hold. If the last hold has more slots than needed, it keeps
  -- the rest.
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

  -- Returns how many millionths of tokens below full a bucket may be booked.
  function hold.deepest(p) return max(p.a, min(MAX_TOKENS * 1000000, refill(p, DECADE))) end

  -- Returns when the last slot ends, how many slots are in use, and a third time: when the first slot ends, if the charge doesn't
  -- fit; or, if it was taken, when the last slot before it ends.
  function hold.report(h, fits, taken)
    return h.last or h.latest or end_at(h, -1), h.sum, taken and h.before or fits and 0 or end_at(h, 0)
  end
end

