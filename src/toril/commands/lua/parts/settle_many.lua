--[[
  Part of `settle.lua`: the short way. Settles the run of plain jobs that begins at word `first`, and takes jobs.

  Everything that could be special or go wrong is looked at before the first write, so that nothing has happened when
  this says no. What does not depend on the order is done once for the run: locks read and removed, ids popped and
  pushed, members added, events trimmed. What does, the events above all, keeps its order. A call into the server and a
  table in a reply cost more than what most of these commands do: their number is what is saved here.

  Gives how many jobs it settled, or nothing when the next one, or the queue, is special.
]]
local batch, first = ...
-- Lua hands at most some thousands of values to one call.
local RUN = 500
local DUE_AT_ONCE = 1000
-- Entries that one trim removes at most, less those that a run can add: below, one more trim does the work of many.
local TRIMMED_AT_ONCE = 5000
local COLON, ZERO = 58, 48

local call, try, byte = redis.call, redis.pcall, string.byte
local base, now, token, life, worker = ARGV[1], ARGV[2], ARGV[4], ARGV[5], ARGV[6]
local wait, active, prioritized, events, delayed = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[7]
local jobs, codes, room = batch.jobs, batch.codes, batch.room

-- --- looking ---------------------------------------------------------------------------------------------------------

-- What the queue says of itself cannot change within a script.
local meta = batch.meta
if not meta then
  meta = call("HMGET", KEYS[9], "paused", "concurrency", "max", "opts.maxLenEvents")
  batch.meta = meta
end
local maxEvents = meta[4] and string.match(meta[4], "^%d+$")
if meta[1] or meta[2] or meta[3] or ARGV[7] ~= "" then
  return
end

-- The run: every job in it exists, is locked by us and has no family.
local count, ids, keys, locks, family, named = 0, {}, {}, {}, {KEYS[5]}, {}
local at, last = first, #ARGV
while at <= last and count < RUN and ARGV[at + 1] == "completed" and ARGV[at + 4] == "" and ARGV[at + 5] == ""
  and not named[ARGV[at]] do
  local id, job = ARGV[at], base .. ARGV[at]
  count = count + 1
  ids[count], keys[count], locks[count], named[id] = id, job, job .. ":lock", ARGV[at + 2]
  family[2 * count], family[2 * count + 1] = job .. ":dependencies", job .. ":unsuccessful"
  at = at + 6
end
local made, suspected = {}, false
if count > 0 then
  -- Few have a family, and suspects are rare; only when there are some, they are looked for.
  local kin = call("EXISTS", unpack(family))
  if kin > 0 then
    suspected = call("EXISTS", KEYS[5]) == 1
    kin = suspected and kin - 1 or kin
  end
  local tokens = call("MGET", unpack(locks))
  for place = 1, count do
    local fields = try("HMGET", keys[place], "name", "parentKey", "parent", "deid", "atm")
    local before = tonumber(fields[5] or 0)
    if not fields[1] or fields[2] or fields[3] or fields[4] or not before or tokens[place] ~= named[ids[place]]
      or (kin > 0 and call("EXISTS", family[2 * place], family[2 * place + 1]) > 0) then
      for beyond = place, count do
        named[ids[beyond]] = nil
      end
      at, count = first + 6 * (place - 1), place - 1
      break
    end
    made[place] = before == 0 and "1" or before + 1
  end
end
if count == 0 and at <= last then
  return
end

-- How many to take: one for each finish; after the last, as many as there is room for.
local isLast = at > last
local wanted = batch.open and math.min(room - #jobs, RUN) or 0
if not isLast then
  wanted = math.min(wanted, count)
end

-- Delayed jobs whose time has come, and the next in line: those that wait, those that are due, those with a priority.
local due, ranks, line, waiting, ready = {}, {}, {}, 0, 0
local hashes, starts = {}, {}
if wanted > 0 then
  due = call("ZRANGEBYSCORE", delayed, 0, (now + 1) * 0x1000 - 1, "LIMIT", 0, DUE_AT_ONCE)
  if #due == DUE_AT_ONCE then
    return
  end
  local tail = call("LRANGE", wait, -wanted, -1)
  waiting = #tail
  for place = 1, waiting do
    line[place] = tail[waiting + 1 - place]
  end
  for place, id in ipairs(due) do
    local rank = try("HGET", base .. id, "priority")
    ranks[place] = tonumber(rank) or 0
    if type(rank) == "table" or (#line < wanted and ranks[place] ~= 0) then
      return
    elseif #line < wanted then
      line[#line + 1] = id
    end
  end
  ready = #line
  if ready < wanted then
    for _, id in ipairs(call("ZRANGE", prioritized, 0, wanted - ready - 1)) do
      line[#line + 1] = id
    end
  end
  local met = {}
  for place, id in ipairs(line) do
    local hash, begun = try("HGETALL", base .. id), 0
    for word = 1, #hash, 2 do
      if hash[word] == "ats" then
        begun = tonumber(hash[word + 1])
        break
      end
    end
    -- Upstream knows what to do with jobs that stand in two places, and with markers, which versions before 5 kept among
    -- the jobs.
    if hash.err or not begun or met[id] or named[id] or (byte(id, 2) == COLON and byte(id, 1) == ZERO) then
      return
    end
    met[id] = true
    hashes[place], starts[place] = hash, begun == 0 and "1" or tostring(begun + 1)
  end
end

-- --- leaving the active list -----------------------------------------------------------------------------------------

batch.begun = count

-- Mostly they are the oldest of the list, all together. Those that are not on it are strangers.
local strangers, left = {}, count
local oldest = count > 1 and call("LRANGE", active, -count, -1) or {}
local together = count > 1 and #oldest == count
for _, id in ipairs(oldest) do
  together = together and named[id]
  named[id] = nil -- one that stands there twice must not hide another
end
if together then
  call("LTRIM", active, 0, -count - 1)
else
  for place = 1, count do
    if call("LREM", active, -1, ids[place]) == 0 then
      strangers[place], left = true, left - 1
    end
  end
end
if count > 0 then
  call("DEL", unpack(locks, 1, count))
end
if suspected then
  call("SREM", KEYS[5], unpack(ids, 1, count))
end
if left > 0 and not maxEvents then
  maxEvents = "10000"
  meta[4] = maxEvents
  call("HSET", KEYS[9], "opts.maxLenEvents", maxEvents)
end
if not isLast then
  wanted = math.min(wanted, left)
end

-- --- job by job ------------------------------------------------------------------------------------------------------

local place, settled, taken = 0, 0, 0
local members, trimAlways, moved = {}, false, false
while place < count or (batch.open and taken < wanted) do
  place = place + 1
  local asleep = place > count
  if strangers[place] then
    codes[#codes + 1] = -3
    batch.refused = true
  else
    if place <= count then
      settled = settled + 1
      -- A trim finds a whole block to remove now and then: that of the last job does it for those between.
      if trimAlways or settled == 1 or settled == left then
        trimAlways = call("XTRIM", events, "MAXLEN", "~", maxEvents) >= TRIMMED_AT_ONCE or maxEvents == "0"
      end
      local id, value = ids[place], ARGV[first + 6 * place - 3]
      call("HSET", keys[place], "atm", made[place], "returnvalue", value, "finishedOn", now)
      call("XADD", events, "*", "event", "completed", "jobId", id, "returnvalue", value, "prev", "active")
      members[2 * settled - 1], members[2 * settled] = now, id
      codes[#codes + 1] = 0
    end

    if batch.open and not moved then
      moved = true
      -- What is due is ready now.
      if #due > 0 then
        call("ZREM", delayed, unpack(due))
        for number, id in ipairs(due) do
          if ranks[number] == 0 then
            call("LPUSH", wait, id)
          else
            local turn = call("INCR", KEYS[10])
            call("ZADD", prioritized, ranks[number] * 0x100000000 + turn % 0x100000000, id)
          end
          call("XADD", events, "*", "event", "waiting", "jobId", id, "prev", "delayed")
          call("HSET", base .. id, "delay", 0)
        end
        call("ZADD", KEYS[11], 0, "0")
        for number = waiting + 1, ready do
          hashes[number] = call("HGETALL", base .. line[number])
        end
      end
      -- All that will be taken becomes active, the first by the command that a full server refuses, before anything else
      -- is written.
      local listed, all = math.min(ready, wanted), math.min(#line, wanted)
      call("RPOPLPUSH", wait, active)
      if listed > 1 then
        call("LTRIM", wait, 0, -listed)
      end
      if all > listed then
        call("ZPOPMIN", prioritized, all - listed)
      end
      if all > 1 or (all == 1 and listed == 0) then
        call("LPUSH", active, unpack(line, listed > 0 and 2 or 1, all))
      end
      if all < wanted then
        call("DEL", KEYS[10])
      end
    end

    if batch.open and taken < #line then
      -- The next job is handed out: locked, told, and given as it is afterwards.
      taken = taken + 1
      local id, hash, start = line[taken], hashes[taken], starts[taken]
      local job, size = base .. id, #hash
      call("SET", job .. ":lock", token, "PX", life)
      call("XADD", events, "*", "event", "active", "jobId", id, "prev", "waiting")
      hash[size + 1], hash[size + 2], hash[size + 3], hash[size + 4] = "processedOn", now, "ats", start
      if worker ~= "" then
        call("HSET", job, "processedOn", now, "pb", worker, "ats", start)
        hash[size + 5], hash[size + 6], hash[size + 7] = "pb", worker, id
      else
        call("HSET", job, "processedOn", now, "ats", start)
        hash[size + 5] = id
      end
      jobs[#jobs + 1] = hash
      batch.open = #jobs < room
    elseif batch.open then
      -- There is none: when may there be one?
      local soon = call("ZRANGE", delayed, 0, 0, "WITHSCORES")
      batch.open = false
      batch.nextAt = soon[2] and tonumber(soon[2]) / 0x1000 or 0
      asleep = asleep or soon[2]
    end
    if not asleep and settled == left and #jobs == 0 and call("LLEN", wait) == 0 and call("LLEN", active) == 0
      and call("ZCARD", prioritized) == 0 then
      call("XADD", events, "*", "event", "drained")
    end
  end
end

if settled > 0 then
  call("ZADD", KEYS[12], unpack(members))
end
if taken > 0 then
  call("ZADD", KEYS[11], 0, "0")
end
return count
