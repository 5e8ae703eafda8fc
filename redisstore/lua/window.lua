-- Fixed window and sliding counter: the count since a window began, and that of the window before.

local function roll(p, time, level, prev)
  if time == 0 or now >= time + 2 * p.window then
    return max(1, now - now % p.window), 0, 0
  end
  if now >= time + p.window then
    if p.algorithm == SLIDING_COUNTER then return time + p.window, 0, level end
    return time + p.window, 0, 0
  end
  return min(time, now), level, prev
end

local function try_window(p, time, level, prev, n)
  local t, l, q = roll(p, time, level, prev)
  local free = p.count - l - n
  if free < 0 or q * (p.ticks - floor((now - t) / p.tick)) > free * p.ticks then
    return min(time, now), level, prev, false
  end
  return t, l + n, q, true
end

local function return_window(p, time, level, prev, n, slot)
  local t, l, q = roll(p, time, level, prev)
  if slot == t then return t, max(0, l - n), q end
  if slot == t - p.window and p.algorithm == SLIDING_COUNTER then return t, l, max(0, q - n) end
  return time, level, prev
end
