-- The acts. See begin.lua for the arguments.

local reply, replies, k = {pack('<I7', now)}, 1, 0

-- What the codes stand for that were met, and the grid of TTLs that goes with them.
local cells = {}
local spans = setmetatable({}, {__index = function(spans, code)
  local octave = floor(code / 4)
  local span = (code % 4 + 4) * 2 ^ (octave - 3)
  spans[code], cells[code] = span, 2 ^ max(octave - 1, LEAST_CELL)
  return span
end})

for _ = 1, acts do
  local kind, low, high = byte(body, at, at + 2)
  local count, once, first = low + 256 * high, 0, true
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
  -- A take's charges are decided together. Others may name a counter twice, and go one by one.
  local size = kind == TAKE and count or 1
  for from = k, k + count - 1, size > 0 and size or 1 do
    local refused, several = false, size > 1 and {}
    local p, key, n, slot, flags, guest, fits, v, time, level, prev, code, time2, level2, prev2
    local recent, before, pace, phase, start, lent -- of a charge that lends, or a bucket that has lent: its debits of late, by slot

    -- All charges are looked at before any is written.
    for i = 1, size do
      local number, want, waiting, spent
      recent = false
      if kind == TAKE then
        number, n, flags, at = unpack('<I2I7B', body, at)
        guest = number >= GUEST
        if guest then number = number - GUEST end
        if flags >= LEND then
          recent, before, pace, phase, start, lent, spent = 0, 0, FAST, 0, 0, 0, 0
          if flags >= SLOW then
            want, spent, slot, at = unpack('<I5I5I7', body, at)
            waiting = 0
          else
            want, waiting, at = unpack('<I5I5', body, at)
          end
        end
      else
        number, n, slot, flags, at = unpack('<I2I7I7B', body, at)
      end
      p, key = policy[number], KEYS[from + i]
      local algorithm = p.algorithm
      if algorithm == SLIDING_LOG then
        if kind == TAKE then fits, time, level = log.look(key, p, n) end -- time: the log; level: its sum
      else
        time, level, prev, code = 0, 0, 0, 0
        v = pcall('HGET', key, p.field)
        if v then
          local bytes = #v
          if bytes == 12 then
            code, time, level = unpack('<BI7I4', v)
          elseif bytes == 15 then
            code, time, level = unpack('<BI7i7', v)
          elseif bytes == 16 then
            code, time, level, prev = unpack('<BI7I4I4', v)
          elseif bytes == 25 then
            code, time, level, recent, before = unpack('<BI7i7I5I5', v)
            pace, phase, start = FAST, 0, 0
          elseif bytes == 26 then
            code, time, level, recent, before, pace = unpack('<BI7i7I5I5B', v)
            phase, pace = (pace - pace % 4) / 4, pace % 4
            start = floor(phase * p.d / PHASES)
          else
            -- It makes no sense, which is a matter of this counter alone: it begins anew.
            if v.err and not v.err:find('^WRONGTYPE') then error(v) end
            if v.err then call('UNLINK', key) else call('HDEL', key, p.field) end
            dropped[#dropped + 1], v = key, false
          end
        end
        -- A refusal leaves all as it was, except a time in the future.
        time2, level2, prev2 = time, level, prev
        if time > now then time2 = now end
        if algorithm <= LEAKY_QUEUE then
          local capacity = p.a
          local left, most = capacity, capacity -- what may be taken, in millionths, and how far that may be raised
          if time > 0 then
            local num, den, dt = p.b, p.c, now - time2
            local was = algorithm == TOKEN_BUCKET and level or capacity - level
            local part = dt % den
            local units = part * num
            left = was + (dt - part) / den * num + (units - units % den) / den
            if left > capacity then left = capacity end
            if recent then
              -- From slot to slot: what the debits of one kept from refilling is lost.
              local length = pace == FAST and LEASE_SLOT or p.d
              local ends, out = time2 - (time2 - start) % length + length, recent + before
              local slack = p.slack -- what refills in the time of a fast lease
              if not slack then
                dt = 2 * LEASE_SLOT
                slack = min(floor(dt / den) * num + floor(dt % den * num / den), 2 ^ 53)
                p.slack = slack
              end
              while out > 0 do
                local cap = capacity - out * 1000000 + slack
                if cap > capacity then cap = capacity end
                local top = cap > was and cap or was
                if now < ends then
                  if left > top then left = top end
                  most = cap
                  break
                end
                part = (now - ends) % den
                units = part * num
                top = top + (now - ends - part) / den * num + (units - units % den) / den
                if left > top then left = top end
                recent, before, out, ends = 0, recent, recent, ends + length
              end
              if out == 0 then pace, phase, start = FAST, 0, 0 end
            end
          end
          if kind == TAKE then
            fits = left >= n * 1000000
            if fits and algorithm == LEAKY_QUEUE and p.d > 0 then
              local num, den, queue = p.b, p.c, capacity - left
              fits = floor(queue / num) * den + ceil(queue % num * den / num) <= p.d
            end
            left = left - n * 1000000
            if recent and fits then
              local slow = flags >= SLOW
              if slow and spent > 0 and pace > FAST then
                local length = p.d
                local since = now - (now - start) % length - slot + (slot - start) % length
                if since == 0 then
                  recent = recent > spent and recent - spent or 0
                elseif since == length then
                  before = before > spent and before - spent or 0
                end
              end
              if recent + before == 0 then
                pace, phase, start = FAST, 0, 0
                if slow then
                  pace, phase = LINGERING, floor(now % p.d * PHASES / p.d)
                end
              end
              if pace == FAST and (want or recent + before > 0) then
                lent = 0
                if want then
                  local whole = floor(left / 1000000)
                  lent = min(slow and floor(want / 10) or want, max(floor(whole * 3 / 4), min(waiting, whole)))
                end
                recent = recent + n + lent
              elseif pace == LINGERING and slow then
                local few, least = p.few, p.least
                if not few then
                  few, least = capacity / 16, floor(capacity / 2)
                  if p.d > SHORT_SLOW_SLOT then few, least = max(0, capacity - 32000000) / 8, floor(capacity / 4) end
                  few = floor(min(few, floor(p.d / p.c) * p.b + floor(p.d % p.c * p.b / p.c)) / 1000000)
                  p.few, p.least = few, least
                end
                if left >= least then
                  lent = (left - left % 2000000) / 2000000
                elseif flags >= AHEAD then
                  lent = few
                end
                if lent > want then lent = want end
                if lent > few - recent - before then lent = few - recent - before end
                if lent < 0 then lent = 0 end
                recent = recent + lent
              elseif pace == LINGERING and want and not slow then
                pace = ENDING
              end
              if want then left = left - lent * 1000000 end
            end
          elseif flags < LEND then
            fits = true
            left = max(left, min(left + n * 1000000, most))
          elseif recent then
            -- What was lent moves from the debits to the level, or is void when its time is over.
            local length = pace == FAST and LEASE_SLOT or p.d
            local age = floor((now - start) / length) - floor((slot - start) / length)
            if flags >= SLOW ~= (pace > FAST) then
              n = 0
            elseif age == 0 then
              n = min(n, recent)
              recent, fits = recent - n, n > 0
            elseif age == 1 then
              n = min(n, before)
              before, fits = before - n, n > 0
            end
            left = min(left + n * 1000000, capacity)
          end
          if fits then
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
            if fits then
              time2, level2, prev2 = t, l + n, q
              if want then
                free = free - ceil(q * (ticks - floor((now - t) / tick)) / ticks)
                lent = min(want, max(floor(free / 64), min(waiting, free)))
                level2 = level2 + lent
              end
            end
          elseif slot == t then
            time2, level2, prev2 = t, max(0, l - n), q
          elseif slot == t - window and algorithm == SLIDING_COUNTER then
            time2, level2, prev2 = t, l, max(0, q - n)
          else
            time2 = time -- too late
          end
        end
      end
      if not fits and flags % LEND < SHADOW then refused = true end
      if several then
        several[i] = {p, n, slot, flags, fits, v, time, level, prev, code, time2, level2, prev2, guest}
        if recent then several[i].recent, several[i].before, several[i].pace, several[i].phase, several[i].lent = recent, before, pace, phase, lent end
      end
    end

    for i = 1, size do
      if several then
        local s = several[i]
        p, n, slot, flags, fits, v, time, level, prev = s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9]
        code, time2, level2, prev2, guest, recent = s[10], s[11], s[12], s[13], s[14], s.recent
        if recent then
          before, pace, phase, lent = s.before, s.pace, s.phase, s.lent
        end
      end
      key = KEYS[from + i]
      local algorithm = p.algorithm
      local taken = fits and kind == TAKE and not refused and flags % 2 ~= PEEK
      local unwritten = false
      if kind == RESET then
        if algorithm == SLIDING_LOG then call('DEL', key) else call('HDEL', key, p.field) end
      elseif algorithm == SLIDING_LOG then
        if kind == TAKE then
          local newest, sum, moment = log.settle(key, p, n, fits, time, level, taken, guest)
          if newest then v = pack('<I7I7I7', newest, sum, moment) else unwritten = true end
        elseif first then
          log.give_back(key, p, n, slot)
        end
      elseif taken or (time2 ~= time or level2 ~= level or prev2 ~= prev or recent and fits) and
          (kind == TAKE and not fits or kind == GIVE_BACK and first and time > 0) then
        local whole = p.b
        if algorithm <= LEAKY_QUEUE then
          local num, den, gone = p.b, p.c, level2
          if algorithm == TOKEN_BUCKET then gone = p.a - level2 end
          local part = gone % num
          local units = part * den
          local rest = units % num
          whole = (gone - part) / num * den + (units - rest) / num
          if rest > 0 then whole = whole + 1 end
          if recent then whole = whole + 2 * (pace == FAST and LEASE_SLOT or p.d) end -- for which leases may be out
        elseif algorithm == SLIDING_COUNTER then
          whole = 2 * whole
        end
        -- How long it takes to be whole again is rounded up, to four times as much while the counter is young: it grows, and
        -- every longer time costs a call. It stays as long as it isn't far too much.
        local code2, old = code, spans[code]
        if whole > old or 8 * whole < old then
          if algorithm <= LEAKY_QUEUE then whole = max(whole, min(4 * whole, p.a / p.b * p.c)) end
          local part, octave = frexp(whole > 1 and whole or 1)
          code2 = min(4 * octave + ceil(8 * part) - 4, 255)
        end
        if algorithm == SLIDING_COUNTER then
          v = pack('<BI7I4I4', code2, time2, level2, prev2)
        elseif recent and recent + before > 0 then
          if pace == FAST then
            v = pack('<BI7i7I5I5', code2, time2, level2, recent, before)
          else
            v = pack('<BI7i7I5I5B', code2, time2, level2, recent, before, pace + 4 * phase)
          end
        elseif level2 < 4294967296 and level2 >= 0 then
          v = pack('<BI7I4', code2, time2, level2)
        else
          v = pack('<BI7i7', code2, time2, level2)
        end
        local grown = not (code == 0 and (full or guest)) and pcall('HSET', key, p.field, v)
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
        -- The key is kept until a bit after the counter is whole again, rounded up to a grid: what was there before and
        -- ends in the same cell of it has seen to that, so few checks have to.
        local before, ends, cell = time + old, time2 + spans[code2], cells[code2]
        ends = ends - ends % cell
        if not unwritten and (code == 0 or cells[code] ~= cell or before - before % cell ~= ends) then
          local ms = ceil((ends + cell - now) / 1000)
          ms = format('%d', min(max(ms, least_ttl), 1e13)) -- Redis doesn't take any number for a TTL
          if not grown or call('PEXPIRE', key, ms, 'NX') == 0 then
            call('PEXPIRE', key, ms, 'GT')
            -- A hash that grows drops fields that can't matter any more: those of twice as many as it grew by, so that
            -- it holds about as many as matter again, and no call looks at all of a large one.
            local fields = grown and call('HLEN', key) or 0
            if fields > 8 and fields % 8 == 1 then
              local some = call('HRANDFIELD', key, 17, 'WITHVALUES')
              for j = 1, #some, 2 do
                local text = some[j + 1]
                if #text < 8 then text = '\0\0\0\0\0\0\0\0' end -- it makes no sense
                local c, t = unpack('<BI7', text)
                if t + spans[c] < now then call('HDEL', key, some[j]) end
              end
            end
          end
        end
      end
      if kind == TAKE then
        local bytes, head = v and #v or 0
        if unwritten then
          head, v, lent = '\15', '', 0
        elseif fits then
          head = bytes == 12 and '\3' or bytes == 15 and '\5' or bytes == 16 and '\7' or bytes == 21 and '\9' or bytes == 25 and '\11' or bytes == 26 and '\13' or '\1'
        else
          head = bytes == 12 and '\2' or bytes == 15 and '\4' or bytes == 16 and '\6' or bytes == 21 and '\8' or bytes == 25 and '\10' or bytes == 26 and '\12' or '\0'
        end
        reply[replies + 1], reply[replies + 2] = head, v or ''
        replies = replies + 2
        if flags >= LEND then
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
