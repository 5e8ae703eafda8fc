-- The acts. See begin.lua for the arguments.

local reply, replies, k = {pack('<I7', now)}, 1, 0

for _ = 1, acts do
  local kind, low, high = byte(body, at, at + 2)
  local count, once, first = low + 256 * high, 0, true
  at = at + 3
  if kind == GIVE_BACK then
    once, at = unpack('<I6', body, at)
    first = once == 0 or call('SET', KEYS[k + count + 1], 1, 'NX', 'PX', once)
  end
  -- A take's charges are decided together. Others may name a counter twice, and go one by one.
  local size = kind == TAKE and count or 1
  for from = k, k + count - 1, max(size, 1) do
    local refused, several = false, size > 1 and {}
    local p, key, n, slot, flags, fits, time, level, prev, span, time2, level2, prev2

    -- All charges are looked at before any is written.
    for i = 1, size do
      local number, after
      number, n, slot, flags, after = unpack('<I2I7I7B', body, at)
      p, key, at = policy[number], KEYS[from + i], after
      local algorithm = p.algorithm
      if algorithm == SLIDING_LOG then
        if kind == TAKE then fits, time, level = log.look(key, p, n) end -- time: the newest entry; level: the sum
      else
        time, level, prev, span = 0, 0, 0, 0
        local v = call('HGET', key, p.field)
        if v then
          local bytes = #v
          if bytes == 12 then
            span, time, level = unpack('<BI7I4', v)
          elseif bytes == 15 then
            span, time, level = unpack('<BI7I7', v)
          else
            span, time, level, prev = unpack('<BI7I4I4', v)
          end
        end
        -- A refusal leaves all as it was, except a time in the future.
        time2, level2, prev2 = min(time, now), level, prev
        if algorithm <= LEAKY_QUEUE then
          local capacity, num, den, max_delay = p.a, p.b, p.c, p.d
          local left = capacity -- what may be taken, in millionths
          if time > 0 then
            local dt = now - time2
            local gained = floor(dt / den) * num + floor(dt % den * num / den)
            left = algorithm == TOKEN_BUCKET and level or capacity - level
            left = gained >= capacity - left and capacity or left + gained
          end
          if kind == TAKE then
            fits = left >= n * 1000000
            if fits and max_delay > 0 then
              local queue = capacity - left
              fits = floor(queue / num) * den + ceil(queue % num * den / num) <= max_delay
            end
            left = left - n * 1000000
          else
            left = max(left, min(left + n * 1000000, capacity))
          end
          if fits or kind == GIVE_BACK then
            time2, level2 = now, algorithm == TOKEN_BUCKET and left or capacity - left
          end
        else
          local limit, window, tick, ticks = p.a, p.b, p.c, p.d
          local t, l, q = time2, level, prev -- the window that it is now
          if time == 0 or now >= time + 2 * window then
            t, l, q = max(1, now - now % window), 0, 0
          elseif now >= time + window then
            t, l, q = time + window, 0, algorithm == SLIDING_COUNTER and level or 0
          end
          if kind == TAKE then
            local free = limit - l - n
            fits = free >= 0 and q * (ticks - floor((now - t) / tick)) <= free * ticks
            if fits then time2, level2, prev2 = t, l + n, q end
          elseif slot == t then
            time2, level2, prev2 = t, max(0, l - n), q
          elseif slot == t - window and algorithm == SLIDING_COUNTER then
            time2, level2, prev2 = t, l, max(0, q - n)
          else
            time2 = time -- too late
          end
        end
      end
      if not fits and flags < SHADOW then refused = true end
      if several then
        several[i] = {p, n, slot, flags, fits, time, level, prev, span, time2, level2, prev2}
      end
    end

    for i = 1, size do
      if several then
        local s = several[i]
        p, n, slot, flags, fits, time, level, prev = s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8]
        span, time2, level2, prev2 = s[9], s[10], s[11], s[12]
      end
      key = KEYS[from + i]
      local taken = kind == TAKE and fits and not refused and flags % 2 ~= PEEK
      if kind == RESET then
        if p.algorithm == SLIDING_LOG then call('DEL', key) else call('HDEL', key, p.field) end
      elseif p.algorithm == SLIDING_LOG then
        if kind == TAKE then
          time, level, prev = log.settle(key, p, n, fits, time, level, taken)
        elseif first then
          log.give_back(key, p, n, slot)
        end
      elseif taken or (time2 ~= time or level2 ~= level or prev2 ~= prev) and
          (kind == TAKE and not fits or kind == GIVE_BACK and first and time > 0) then
        local algorithm, whole, v = p.algorithm, p.b
        if algorithm <= LEAKY_QUEUE then
          local num, den = p.b, p.c
          local gone = algorithm == TOKEN_BUCKET and max(0, p.a - level2) or level2
          whole = floor(gone / num) * den + ceil(gone % num * den / num)
        elseif algorithm == SLIDING_COUNTER then
          whole = 2 * whole
        end
        local part, octave = frexp(max(whole, 1))
        local span2 = min(4 * octave + ceil(8 * part) - 4, 255)
        if algorithm == SLIDING_COUNTER then
          v = pack('<BI7I4I4', span2, time2, level2, prev2)
        elseif level2 < 4294967296 then
          v = pack('<BI7I4', span2, time2, level2)
        else
          v = pack('<BI7I7', span2, time2, level2)
        end
        if call('HSET', key, p.field, v) == 1 then
          -- A hash that grows drops fields that can't matter any more.
          local fields = call('HLEN', key)
          if fields > 8 and fields % 8 == 1 then
            local all = call('HGETALL', key)
            for j = 1, #all, 2 do
              local old_span, old_time = unpack('<BI7', all[j + 1])
              if old_time + (old_span % 4 + 4) * 2 ^ floor(old_span / 4 - 3) < now then call('HDEL', key, all[j]) end
            end
          end
        end
        -- The key is kept until a bit after the counter is whole again, rounded up to a grid: what was there before and
        -- ends in the same cell of it has seen to that, so few checks have to.
        octave = floor(span2 / 4)
        local cell = 2 ^ max(octave - 3, 23)
        local ends = floor((time2 + (span2 % 4 + 4) * 2 ^ (octave - 3)) / cell)
        octave = floor(span / 4)
        if span == 0 or 2 ^ max(octave - 3, 23) ~= cell or floor((time + (span % 4 + 4) * 2 ^ (octave - 3)) / cell) ~= ends then
          local ms = ceil(((ends + 1) * cell - now) / 1000)
          ms = min(max(ms, least_ttl), 1e13) -- Redis doesn't take any number for a TTL
          if call('PTTL', key) < ms then call('PEXPIRE', key, ms) end
        end
        time, level, prev = time2, level2, prev2
      end
      if kind == TAKE then
        replies = replies + 1
        reply[replies] = pack('<BI7I7I7', fits and 1 or 0, time, level, prev)
      end
    end
  end

  k = k + count + (once > 0 and 1 or 0)
  if kind == GIVE_BACK then
    replies = replies + 1
    reply[replies] = pack('<B', first and 1 or 0)
  end
end

return table.concat(reply)
