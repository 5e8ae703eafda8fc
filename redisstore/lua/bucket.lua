-- Token bucket, leaky bucket and leaky queue: a level in millionths of a token, and when it was right.
-- Every number is whole and below 2^53; the rate num/den is in millionths per µs, with num * den < 2^53.

-- a * b / c, rounded down, without a * b ever being too large.
local function scale(a, b, c)
  return floor(a / c) * b + floor(a % c * b / c)
end

-- The same, rounded up.
local function scale_up(a, b, c)
  return floor(a / c) * b + ceil(a % c * b / c)
end

local function tokens(p, time, level)
  if time == 0 then return p.capacity end
  if p.algorithm ~= TOKEN_BUCKET then level = p.capacity - level end
  if now > time then
    local gained = scale(now - time, p.num, p.den)
    if gained >= p.capacity - level then return p.capacity end
    level = level + gained
  end
  return min(level, p.capacity)
end

local function bucket_level(p, left)
  if p.algorithm == TOKEN_BUCKET then return left end
  return p.capacity - left
end

-- Try, for every algorithm: the new time, level and previous level, and whether n fits.
local function try_bucket(p, time, level, n)
  if time > now then time = now end
  local need = n * MICRO
  if need > p.capacity then return time, level, 0, false end
  local left = tokens(p, time, level)
  if left < need or p.max_delay > 0 and scale_up(p.capacity - left, p.den, p.num) > p.max_delay then
    return time, level, 0, false
  end
  return now, bucket_level(p, left - need), 0, true
end

-- Give back, for every algorithm: the new time, level and previous level.
local function return_bucket(p, time, level, n)
  if time > now then time = now end
  local left = tokens(p, time, level)
  return now, bucket_level(p, max(left, min(left + n * MICRO, p.capacity))), 0
end

-- How long after its time the bucket is whole again.
local function bucket_memory(p, level)
  if p.algorithm == TOKEN_BUCKET then level = max(0, p.capacity - level) end
  return scale_up(level, p.den, p.num)
end
