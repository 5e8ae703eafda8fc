-- Sliding log: a list of what was admitted in the window, oldest first. An entry holds its moment, its cost,
-- and the sum of all costs up to and with it, so that what is in the log costs two reads, however long it is.

local log = {}
if logs then
  local ENTRY = '<I7I4I7'
  local CHUNK = 32

  local function keep(key, p)
    local ms = ceil(p.b / 1000)
    if call('PTTL', key) < ms then call('PEXPIRE', key, max(ms + floor(ms / 8) + 1000, least_ttl)) end
  end

  local function entry(v)
    if not v then return nil end
    local time, cost, sum = unpack(ENTRY, v)
    return {time = time, cost = cost, sum = sum}
  end

  local function entries(key, from, to)
    local list = call('LRANGE', key, from, to)
    for i = 1, #list do list[i] = entry(list[i]) end
    return list
  end

  -- Appends entries from the given one on, with the sums that follow from what was there before them.
  local function push(key, list, from, sum)
    local packed = {}
    for i = from, #list do
      sum = sum + list[i].cost
      packed[#packed + 1] = pack(ENTRY, list[i].time, list[i].cost, sum)
      if #packed == 1000 or i == #list then
        call('RPUSH', key, _G.unpack(packed))
        packed = {}
      end
    end
  end

  -- Writes a log anew.
  local function rewrite(key, p, list)
    call('DEL', key)
    if #list == 0 then return end
    push(key, list, 1, 0)
    keep(key, p)
  end

  -- Drops what has left the window, and brings entries of the future to now. Returns the oldest and the
  -- newest entry, or nothing.
  local function prune(key, p)
    local last = entry(call('LINDEX', key, -1))
    if not last then return nil end
    if last.time > now then
      local list = entries(key, 0, -1)
      for i = 1, #list do list[i].time = min(list[i].time, now) end
      rewrite(key, p, list)
      last = entry(call('LINDEX', key, -1))
    end
    if last.time <= now - p.b then
      call('DEL', key)
        return nil
    end
    local first = entry(call('LINDEX', key, 0))
    if first.time > now - p.b then return first, last end
    local dead = 0
    repeat
      local list, i = entries(key, dead, dead + CHUNK - 1), 1
      while list[i] and list[i].time <= now - p.b do i = i + 1 end
      dead, first = dead + i - 1, list[i]
    until first
    call('LTRIM', key, dead, -1)
    return first, last
  end

  -- Whether n fits, the newest entry, and the sum.
  function log.look(key, p, n)
    local first, last = prune(key, p)
    local sum = first and last.sum - first.sum + first.cost or 0
    return n <= p.a - sum, last, sum
  end

  -- The moment of the entry whose leaving makes room for n.
  local function makes_room(key, p, sum, n)
    local over, i = sum + n - p.a, 0
    while true do
      local list = entries(key, i, i + CHUNK - 1)
      if #list == 0 then return now end -- never; but a loop without an end would stop Redis
      for j = 1, #list do
        over = over - list[j].cost
        if over <= 0 then return list[j].time end
      end
      i = i + CHUNK
    end
  end

  -- Takes n, or doesn't. Returns the newest entry's moment, the sum, and, where n doesn't fit, the moment of the
  -- entry whose leaving makes room, or, where it was taken, that of the newest entry before.
  function log.settle(key, p, n, fits, last, sum, taken)
    local newest = last and last.time or 0
    if taken then
      if newest == now then
        call('LSET', key, -1, pack(ENTRY, now, last.cost + n, last.sum + n))
      else
        call('RPUSH', key, pack(ENTRY, now, n, (last and last.sum or 0) + n))
      end
      keep(key, p)
      return now, sum + n, newest
    end
    return newest, sum, not fits and n <= p.a and makes_room(key, p, sum, n) or 0
  end

  -- Takes n off what was admitted at the slot's moment.
  function log.give_back(key, p, n, slot)
    if not prune(key, p) then return end
    -- What is given back was taken not long ago: only the end of the list has to be read and written.
    local size, list, whole = CHUNK
    repeat
      list = entries(key, -size, -1)
      whole = #list < size
      size = 8 * size
    until whole or list[1].time < slot
    local count, changed = #list, false
    for i = #list, 1, -1 do
      local e = list[i]
      if n == 0 or e.time < slot then break end
      if e.time == slot then
        local part = min(n, e.cost)
        e.cost, n, changed = e.cost - part, n - part, true
        if e.cost == 0 then table.remove(list, i) end
      end
    end
    if not changed then return end
    if whole then return rewrite(key, p, list) end
    call('LTRIM', key, 0, -count) -- up to the first that was read, which is older
    push(key, list, 2, list[1].sum)
  end
end

