-- The acts. See begin.lua for the arguments.

local reply, replies, k = {pack('<I7', now)}, 1, 0

-- The durations that codes stand for, computed when they are first needed, and for each the grid to which TTLs are rounded.
local cells = {}
local spans = setmetatable({}, {__index = function(spans, code)
  local octave = floor(code / 4)
  local span = (code % 4 + 4) * 2 ^ (octave - 3)
  spans[code], cells[code] = span, 2 ^ max(octave - 1, LEAST_CELL)
  return span
end})

for _ = 1, acts do
  local kind, low, high = byte(body, at, at + 2)
  -- gate: nil before the first RECORDED charge, then whether its record existed
  local count, once, first, gate = low + 256 * high, 0, true, nil
  at = at + 3
  if kind == GIVE_BACK then
    once, at = unpack('<I6', body, at)
    if once > 0 then
      first = not full and pcall('SET', KEYS[k + count + 1], 1, 'NX', 'PX', once)
      if first and first.err then
        if not first.err:find('^OOM') then error(first) end
        first, full = false, true
      end
    end
  end
  -- The charges of a take are decided together. Other acts may name a counter twice, so their charges are decided one by one.
  local size = kind == TAKE and count or 1
  for from = k, k + count - 1, size > 0 and size or 1 do
    local refused, several = false, size > 1 and {}
    local p, key, n, slot, flags, past, guest, fits, v, time, level, prev, code, time2, level2, prev2
    local account, changed, lent, claim -- for a bucket that lends: its account, whether it changed, tokens lent, the node's claim
    local held                          -- the counter's holds, and the charge's own

    -- First read all charges, then write.
    for i = 1, size do
      local number, waiting, want
      number, n, flags, at = unpack('<I2I7B', body, at)
      past, flags = flags - flags % COUNT_REFUSED, flags % COUNT_REFUSED -- past: flags of charges that count beyond the limit
      local again, holding = false, false
      if past >= AGAIN then
        holding = past >= HOLD
        if holding then past = past - HOLD end
        again = past >= AGAIN -- another charge for the same counter pays for this one
        if again then past = past - AGAIN end
      end
      guest = number >= GUEST
      if guest then number = number - GUEST end
      waiting, want, account, changed, lent, claim, held = 0, 0, false, false, 0, nil, false
      if kind ~= TAKE then slot, at = unpack('<I7', body, at) end
      if flags % CLAIM >= LEND then waiting, want, at = unpack('<I5I5', body, at) end
      if flags >= CLAIM then
        local base, moment, left, held
        base, moment, left, held, at = unpack('<I7I7i7I5', body, at)
        claim = {base = base, time = moment, level = left, held = held}
      end
      p, key = policy[number], KEYS[from + i]
      local algorithm = p.algorithm
      if p.holds then
        held, at = hold.look(key, p, kind, first, holding, n, at, from)
        if kind == GIVE_BACK and first then
          if holding and flags % 2 == RECORDED and algorithm ~= CONCURRENCY and not held.form then
            n, slot = 0, 0
            if gate == nil then gate, first = false, false end
          elseif holding then
            n, slot = hold.settle(held, p, n)
            if flags % 2 == RECORDED then gate = true end
          elseif algorithm == CONCURRENCY then
            hold.free(held, p, n)
          end
        end
      end
      if algorithm == SLIDING_LOG then
        if kind == TAKE then fits, time, level = log.look(key, p, n) end -- time: the log; level: its sum
      elseif algorithm == CONCURRENCY then
        fits = kind == TAKE and n <= p.a - held.sum
      else
        time, level, prev, code = 0, 0, 0, 0
        v = pcall('HGET', key, p.field)
        if v then
          local form = byte(v.err and '' or v)
          if form == SMALL and #v == 13 then
            form, code, time, level = unpack(SMALL_FIELD, v)
          elseif form == LARGE and #v == 16 then
            form, code, time, level = unpack(LARGE_FIELD, v)
          elseif form == PAIR and #v == 17 then
            form, code, time, level, prev = unpack(PAIR_FIELD, v)
          elseif form == ACCOUNT and #v == 37 then
            local out, before, since, alone, streak
            form, code, time, level, out, before, since, alone, streak = unpack(ACCOUNT_FIELD, v)
            account = {time = time, level = level, lent = out, before = before, since = since, node = alone, streak = streak}
          else
            -- The field isn't valid. Only this counter is affected: it starts over as untouched.
            if v.err and not v.err:find('^WRONGTYPE') then error(v) end
            if v.err then call('UNLINK', key) else call('HDEL', key, p.field) end
            dropped[#dropped + 1], v = key, false
          end
        end
        -- A refusal changes nothing, except a time in the future.
        time2, level2, prev2 = time, level, prev
        if time > now then time2 = now end
        if past == BOOK or n < 0 then account = false end -- its limit no longer lends
        local unit = p.unit
        if algorithm <= LEAKY_QUEUE and (account or flags >= LEND) then
          account = account or {time = 0, level = 0, lent = 0, before = 0, since = 0, node = 0, streak = 0}
          account.time, account.level = time, algorithm == TOKEN_BUCKET and level or p.a - level
          if kind == TAKE then
            fits, lent, changed = lend(p, account, n, waiting, want, claim)
          elseif kind == TAKE_BACK then
            changed = take_back(p, account, n, slot, claim)
          else
            refund(p, account, n)
            changed = true
          end
          time2, level2 = account.time, algorithm == TOKEN_BUCKET and account.level or p.a - account.level
        elseif algorithm <= LEAKY_QUEUE then
          local capacity = p.a
          local left = capacity -- what may be taken, in millionths
          if time > 0 then
            local num, den, dt = p.b, p.c, now - time2
            local part = dt % den
            local units = part * num
            left = (algorithm == TOKEN_BUCKET and level or capacity - level) + (dt - part) / den * num + (units - units % den) / den
            if left > capacity then left = capacity end
          end
          if kind == TAKE then
            fits = left >= n * unit
            if fits and algorithm == LEAKY_QUEUE and p.d > 0 then
              local num, den, queue = p.b, p.c, capacity - left
              fits = floor(queue / num) * den + ceil(queue % num * den / num) <= p.d
            end
            left = left - n * unit
            if past == BOOK and not fits and flags % 2 ~= PEEK then
              fits, left = true, max(left, capacity - p.d)
            end
            if fits then
              time2, level2 = now, algorithm == TOKEN_BUCKET and left or capacity - left
            end
          elseif n < 0 then -- more was used than was taken
            left = max(left + n * unit, capacity - hold.deepest(p))
            time2, level2 = now, algorithm == TOKEN_BUCKET and left or capacity - left
          elseif kind == GIVE_BACK then -- without refilling, because the limit in force may have other numbers
            if algorithm == TOKEN_BUCKET then
              level2 = max(level, min(level + n * unit, capacity))
            else
              level2 = min(level, max(level - n * unit, 0))
            end
          end
        else
          local limit, window, tick, ticks = p.a, p.b, p.c, p.d
          local t, l, q, booked = time2, level, prev, false -- the current window, and the amount to take even if it doesn't fit
          if p.calendar then
            -- The node sends three windows. If its clock is further off than they allow for, the first or last one is used.
            local ends = tick
            t, tick = window, 1
            if now >= ends then t, ends = ends, ticks end
            if now >= ends then t, ends = ends, 9007199254740992 end
            ticks = 1
            if time < t then l = 0 elseif time <= ends then t = time end
            if time > now then time2 = t end
          elseif time == 0 or now >= time + 2 * window then
            t, l, q = max(1, now - now % window), 0, 0
          elseif now >= time + window then
            t, l, q = time + window, 0, algorithm == SLIDING_COUNTER and level or 0
          end
          if kind == TAKE then
            local free = limit - l - n
            fits = free >= 0 and q * (ticks - floor((now - t) / tick)) <= free * ticks
            if fits then
              time2, level2, prev2 = t, l + n, q
              if flags >= LEND then
                free = max(0, free - ceil(q * (ticks - floor((now - t) / tick)) / ticks))
                lent = min(waiting + want, max(floor(free / 64), min(waiting, free)))
                level2 = level2 + lent
              end
            elseif past > 0 and flags % 2 ~= PEEK then
              fits, booked = past == BOOK, n
            end
          elseif n < 0 then -- more was used than was taken
            booked = -n
          elseif slot == t or slot == 0 then
            time2, level2, prev2 = t, max(0, l - n), q
          elseif slot == t - window and algorithm == SLIDING_COUNTER then
            time2, level2, prev2 = t, l, max(0, q - n)
          else
            time2 = time -- too late
          end
          if booked then
            local deepest = algorithm == SLIDING_COUNTER and 2147483647 or unit == 1 and 9007199254740991 or 2 * MAX_TOKENS
            time2, level2, prev2 = t, max(l, min(l + booked, deepest)), q
          end
        end
      end
      if held then
        if kind == GIVE_BACK and holding and n == 0 or held.form and kind == TAKE then -- nothing to give back, or to take
          fits, time2, level2, prev2, changed, lent = true, time, level, prev, false, 0
        end
      end
      if again then time2, level2, prev2, changed = time, level, prev, false end
      if not fits and flags % LEND < SHADOW then refused = true end
      if several then
        several[i] = {p, n, slot, flags, fits, v, time, level, prev, code, time2, level2, prev2, account, changed, lent, claim, guest, past, held}
      end
    end

    for i = 1, size do
      if several then
        local s = several[i]
        p, n, slot, flags, fits, v, time, level, prev = s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9]
        code, time2, level2, prev2, account, changed, lent, claim, guest = s[10], s[11], s[12], s[13], s[14], s[15], s[16], s[17], s[18]
        past, held = s[19], s[20]
      end
      key = KEYS[from + i]
      local algorithm = p.algorithm
      local taken = fits and kind == TAKE and (not refused or past == BOOK) and flags % 2 ~= PEEK
      local unwritten, debited = false, taken
      if taken and held and held.id then
        -- Write the hold first: if there is no memory for it, nothing is debited.
        local counts_windows = algorithm == FIXED_WINDOW or algorithm == SLIDING_COUNTER
        unwritten = not hold.put(held, p, n, counts_windows and time2 or now, guest)
        debited = not unwritten and not held.form
      end
      if kind == RESET then
        call('UNLINK', held.records, held.ends)
        if algorithm == SLIDING_LOG then
          call('DEL', key)
        elseif algorithm ~= CONCURRENCY then
          call('HDEL', key, p.field)
        end
      elseif algorithm == SLIDING_LOG then
        if kind == TAKE then
          local newest, sum, moment = log.settle(key, p, n, fits, time, level, debited, guest)
          if newest then v = pack('<BI7I7I7', LOG, newest, sum, moment) else unwritten = true end
        elseif first and not (held and held.id and n <= 0) then
          log.give_back(key, p, n, slot)
        end
      elseif algorithm == CONCURRENCY then
        if kind == TAKE then v = pack('<BI7I7I7', LOG, hold.report(held, fits, debited)) end
      elseif debited or (time2 ~= time or level2 ~= level or prev2 ~= prev or changed) and
          (kind == TAKE and not fits or kind ~= TAKE and first and (time > 0 or n < 0)) then
        local whole = p.b
        if algorithm <= LEAKY_QUEUE then
          local num, den, gone = p.b, p.c, level2
          if algorithm == TOKEN_BUCKET then gone = p.a - level2 end
          local part = gone % num
          local units = part * den
          local rest = units % num
          whole = (gone - part) / num * den + (units - rest) / num
          if rest > 0 then whole = whole + 1 end
          if account then whole = whole + 2 * p.d end -- leases may be out for that long
        elseif algorithm == SLIDING_COUNTER then
          whole = 2 * whole
        elseif p.calendar then
          whole = p.d - whole -- until the end of the next window: the window is still known if the clock steps back
        end
        -- The time until the counter is full again is rounded up, for a young counter to as much as four times the value: that
        -- time grows, and each change of it costs a command. The old value stays unless it is too short or far too long.
        local code2, old = code, spans[code]
        if whole > old or 8 * whole < old then
          if algorithm <= LEAKY_QUEUE then whole = max(whole, min(4 * whole, p.a / p.b * p.c)) end
          local part, octave = frexp(whole > 1 and whole or 1)
          code2 = min(4 * octave + ceil(8 * part) - 4, 255)
        end
        if algorithm == SLIDING_COUNTER then
          v = pack(PAIR_FIELD, PAIR, code2, time2, level2, prev2)
        elseif account and account.since > 0 then
          v = pack(ACCOUNT_FIELD, ACCOUNT, code2, time2, level2, account.lent, account.before, account.since, account.node, account.streak)
        elseif level2 < 4294967296 and level2 >= 0 then
          v = pack(SMALL_FIELD, SMALL, code2, time2, level2)
        else
          v = pack(LARGE_FIELD, LARGE, code2, time2, level2)
        end
        local grown = not (code == 0 and (full or guest) and kind == TAKE) and pcall('HSET', key, p.field, v)
        if grown ~= 0 and grown ~= 1 then
          if grown then
            if not grown.err:find('^OOM') then error(grown) end
            full = true
          end
          grown, unwritten = 0, code == 0
          if not unwritten then
            call('HDEL', key, '')
            call('HSET', key, p.field, v)
          end
        end
        grown = grown == 1
        -- The key expires soon after the counter is full again, at a time rounded up to a grid. If the old state ends in the
        -- same cell of that grid, the TTL is already right, so few checks have to set it.
        local before, ends, cell = time + old, time2 + spans[code2], cells[code2]
        ends = ends - ends % cell
        if not unwritten and (code == 0 or cells[code] ~= cell or before - before % cell ~= ends) then
          local ms = ceil((ends + cell - now) / 1000)
          ms = format('%d', min(max(ms, least_ttl), 1e13)) -- Redis rejects larger TTLs
          if not grown or call('PEXPIRE', key, ms, 'NX') == 0 then
            call('PEXPIRE', key, ms, 'GT')
            -- After every eight new fields, look at 17 random fields of the hash and drop those of counters that are full again.
            -- So the hash shrinks to about the fields that still matter, and no call reads all of a large hash.
            local fields = grown and call('HLEN', key) or 0
            if fields > 8 and fields % 8 == 1 then
              local some = call('HRANDFIELD', key, 17, 'WITHVALUES')
              for j = 1, #some, 2 do
                local text = some[j + 1]
                if #text < 9 then text = '\0\0\0\0\0\0\0\0\0' end -- the field isn't valid
                local _, c, t = unpack('<BBI7', text)
                if t + spans[c] < now then call('HDEL', key, some[j]) end
              end
            end
          end
        end
      end
      if kind == TAKE then
        if unwritten then v, lent = false, 0 end
        reply[replies + 1], reply[replies + 2] = unwritten and '\2' or held and held.form and '\3' or fits and '\1' or '\0', v or '\0'
        replies = replies + 2
        if flags % CLAIM >= LEND then
          replies = replies + 1
          reply[replies] = pack('<I5', taken and lent or 0)
        end
      end
    end
  end

  k = k + count + (once > 0 and 1 or 0)
  if kind == GIVE_BACK then
    replies = replies + 1
    reply[replies] = first and '\1' or full and once > 0 and '\2' or '\0'
  end
end

for i = 1, #dropped do reply[replies + i] = pack('<I2', #dropped[i]) .. dropped[i] end
return table.concat(reply)
