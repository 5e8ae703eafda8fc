-- Sliding log: a list of what was admitted in the window, oldest first. An entry holds its moment, its cost,
-- and the sum of all costs up to and with it, so that what is in the log costs two reads, however long it is.

local ENTRY = '<I7I4I7'
local CHUNK = 32

local function log_entry(v)
  if not v then return nil end
  local time, cost, sum = unpack(ENTRY, v)
  return {time = time, cost = cost, sum = sum}
end

local function log_entries(key, from, to)
  local list = call('LRANGE', key, from, to)
  for i = 1, #list do list[i] = log_entry(list[i]) end
  return list
end

-- Writes a log anew, with its sums.
local function log_rewrite(key, p, list)
  call('DEL', key)
  left[key] = nil
  if #list == 0 then return end
  local sum, packed = 0, {}
  for i = 1, #list do
    sum = sum + list[i].cost
    packed[#packed + 1] = pack(ENTRY, list[i].time, list[i].cost, sum)
    if #packed == 1000 or i == #list then
      call('RPUSH', key, table_unpack(packed))
      packed = {}
    end
  end
  keep(key, p.window)
end

-- Drops what has left the window, and brings entries of the future to now. Returns the oldest and the
-- newest entry, or nothing.
local function log_prune(key, p)
  local last = log_entry(call('LINDEX', key, -1))
  if not last then return nil end
  if last.time > now then
    local list = log_entries(key, 0, -1)
    for i = 1, #list do list[i].time = min(list[i].time, now) end
    log_rewrite(key, p, list)
    last = log_entry(call('LINDEX', key, -1))
  end
  if last.time <= now - p.window then
    call('DEL', key)
    left[key] = nil
    return nil
  end
  local first = log_entry(call('LINDEX', key, 0))
  if first.time > now - p.window then return first, last end
  local dead = 0
  repeat
    local list, i = log_entries(key, dead, dead + CHUNK - 1), 1
    while list[i] and list[i].time <= now - p.window do i = i + 1 end
    dead, first = dead + i - 1, list[i]
  until first
  call('LTRIM', key, dead, -1)
  return first, last
end

-- What is in the log.
local function log_sum(first, last)
  if not first then return 0 end
  return last.sum - first.sum + first.cost
end

local function log_add(key, last, n)
  local sum = last and last.sum or 0
  if last and last.time == now then
    call('LSET', key, -1, pack(ENTRY, now, last.cost + n, sum + n))
  else
    call('RPUSH', key, pack(ENTRY, now, n, sum + n))
  end
end

-- The moment of the entry whose leaving makes room for n.
local function log_retry(key, p, sum, n)
  local over, i = sum + n - p.count, 0
  while true do
    local list = log_entries(key, i, i + CHUNK - 1)
    for j = 1, #list do
      over = over - list[j].cost
      if over <= 0 then return list[j].time end
    end
    i = i + CHUNK
  end
end

-- Takes n off what was admitted at the slot's moment.
local function log_return(key, p, n, slot)
  if not log_prune(key, p) then return end
  local list, changed = log_entries(key, 0, -1), false
  for i = #list, 1, -1 do
    local e = list[i]
    if n == 0 or e.time < slot then break end
    if e.time == slot then
      local part = min(n, e.cost)
      e.cost, n, changed = e.cost - part, n - part, true
      if e.cost == 0 then table.remove(list, i) end
    end
  end
  if changed then log_rewrite(key, p, list) end
end
