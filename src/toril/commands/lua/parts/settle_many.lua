--[[
  Part of `settle.lua`: settles a run of plain jobs, from the settlement at `first` on, and fetches jobs.

  Everything that could be special or fail is read before the first write, so that nothing has been written when this
  returns nothing. What does not depend on the order is done once for the run: locks read and removed, ids popped and
  pushed, members added, events trimmed. What does, the events above all, keeps its order. A call into the server and a
  table in a reply cost more than most of these commands: this part exists to make fewer calls.

  Returns how many jobs it settled, or nothing when the next one, or the queue, is not plain.
]]
--@keys wait active prioritized events stalled delayed meta pc marker completed
--@args base now_ms token lock_ms worker rate_limit
--@each job_id kind token value options fields
--@own has_group_limits has_group_limits
--@own set_locks set_locks
local batch, first = ...
-- Lua passes at most some thousands of values to one call.
local MAX_RUN = 500
local DUE_AT_ONCE = 1000
-- One trim removes at most this many entries, less those that a run can add: after fewer, nothing is left to trim.
local TRIMMED_AT_ONCE = 5000
local COLON, ZERO = 58, 48

local call, try, byte = redis.call, redis.pcall, string.byte
local jobs, codes, capacity = batch.jobs, batch.codes, batch.capacity

-- --- reading ---------------------------------------------------------------------------------------------------------

-- The settings of the queue cannot change within a script.
local settings = batch.settings
if not settings then
  settings = call("HMGET", meta, "paused", "concurrency", "max", "opts.maxLenEvents")
  batch.settings = settings
end
local max_events = settings[4] and string.match(settings[4], "^%d+$")
if settings[1] or settings[2] or settings[3] or rate_limit ~= "" then
  return
end

-- The run: every job in it exists, is locked by this worker and has neither parent nor children.
local count, ids, keys, locks, rare, named = 0, {}, {}, {}, {stalled}, {}
local at, last = first, #ARGV
while at <= last and count < MAX_RUN and ARGV[at + KIND] == "completed" and ARGV[at + OPTIONS] == ""
  and ARGV[at + FIELDS] == "" and not named[ARGV[at + JOB_ID]] do
  local id, job = ARGV[at + JOB_ID], base .. ARGV[at + JOB_ID]
  count = count + 1
  ids[count], keys[count], locks[count], named[id] = id, job, job .. ":lock", ARGV[at + TOKEN]
  rare[2 * count], rare[2 * count + 1] = job .. ":dependencies", job .. ":unsuccessful"
  at = at + ITEM_SIZE
end
local made, has_stalled = {}, false
if count > 0 then
  -- Children, and jobs marked as stalled, are rare; only when there are some, they are looked for.
  local found = call("EXISTS", unpack(rare))
  if found > 0 then
    has_stalled = call("EXISTS", stalled) == 1
    found = has_stalled and found - 1 or found
  end
  local tokens = call("MGET", unpack(locks))
  for place = 1, count do
    local fields = try("HMGET", keys[place], "name", "parentKey", "parent", "deid", "atm")
    local before = tonumber(fields[5] or 0)
    if not fields[1] or fields[2] or fields[3] or fields[4] or not before or tokens[place] ~= named[ids[place]]
      or (found > 0 and call("EXISTS", rare[2 * place], rare[2 * place + 1]) > 0) then
      for beyond = place, count do
        named[ids[beyond]] = nil
      end
      at, count = first + ITEM_SIZE * (place - 1), place - 1
      break
    end
    made[place] = before == 0 and "1" or before + 1
  end
end
if count == 0 and at <= last then
  return
end

-- How many to fetch: one for each finish; after the last, as many as the capacity allows.
local is_last = at > last
local wanted = batch.open and math.min(capacity - #jobs, MAX_RUN) or 0
if not is_last then
  wanted = math.min(wanted, count)
end

-- Delayed jobs that are due, and the next jobs: those that wait, those that are due, those with a priority.
local due, priorities, next_ids, waiting, ready = {}, {}, {}, 0, 0
local hashes, starts = {}, {}
if wanted > 0 then
  due = call("ZRANGEBYSCORE", delayed, "0", (now_ms + 1) * 0x1000 - 1, "LIMIT", "0", DUE_AT_ONCE)
  if #due == DUE_AT_ONCE then
    return
  end
  local tail = call("LRANGE", wait, -wanted, -1)
  waiting = #tail
  for place = 1, waiting do
    next_ids[place] = tail[waiting + 1 - place]
  end
  for place, id in ipairs(due) do
    local priority = try("HGET", base .. id, "priority")
    priorities[place] = tonumber(priority) or 0
    if type(priority) == "table" or (#next_ids < wanted and priorities[place] ~= 0) then
      return
    elseif #next_ids < wanted then
      next_ids[#next_ids + 1] = id
    end
  end
  ready = #next_ids
  if ready < wanted then
    for _, id in ipairs(call("ZRANGE", prioritized, 0, wanted - ready - 1)) do
      next_ids[#next_ids + 1] = id
    end
  end
  local seen, has_priority = {}, #next_ids > ready
  for place, id in ipairs(next_ids) do
    local hash, begun = try("HGETALL", base .. id), 0
    for number = 1, #hash, 2 do
      local name = hash[number]
      if name == "ats" then
        begun = tonumber(hash[number + 1])
      elseif name == "priority" then
        -- A job with a priority is in wait only when it stalled, or was retried by hand.
        has_priority = has_priority or hash[number + 1] ~= "0"
      end
    end
    -- The official scripts handle ids that are in two places, and markers, which BullMQ before version 5 kept among the
    -- jobs.
    if hash.err or not begun or seen[id] or named[id] or (byte(id, 2) == COLON and byte(id, 1) == ZERO) then
      return
    end
    seen[id] = true
    hashes[place], starts[place] = hash, begun == 0 and "1" or tostring(begun + 1)
  end
  -- Jobs of groups have priorities; none is fetched here while groups have limits.
  if has_priority and has_group_limits(KEYS, ARGV) then
    batch.open, batch.has_limits = false, 1
    wanted, due, next_ids = 0, {}, {}
  end
end

-- --- leaving the active list -----------------------------------------------------------------------------------------

batch.begun = count

-- Mostly the jobs are the oldest ones of the list, all together. Jobs that are not in the list are refused.
local missing, left = {}, count
local oldest = count > 1 and call("LRANGE", active, -count, -1) or {}
local together = count > 1 and #oldest == count
for _, id in ipairs(oldest) do
  together = together and named[id]
  named[id] = nil -- an id that is in the list twice must not hide another
end
if together then
  call("LTRIM", active, 0, -count - 1)
else
  for place = 1, count do
    if call("LREM", active, "-1", ids[place]) == 0 then
      missing[place], left = true, left - 1
    end
  end
end
if count > 0 then
  call("DEL", unpack(locks, 1, count))
end
if has_stalled then
  call("SREM", stalled, unpack(ids, 1, count))
end
if left > 0 and not max_events then
  max_events = "10000"
  settings[4] = max_events
  call("HSET", meta, "opts.maxLenEvents", max_events)
end
if not is_last then
  wanted = math.min(wanted, left)
end

-- --- job by job ------------------------------------------------------------------------------------------------------

local place, settled, fetched = 0, 0, 0
local members, new_locks, trim_always, moved = {}, {}, false, false
while place < count or (batch.open and fetched < wanted) do
  place = place + 1
  local is_idle = place > count
  if missing[place] then
    codes[#codes + 1] = -3
    batch.refused = true
  else
    if place <= count then
      settled = settled + 1
      -- A trim rarely finds a whole block to remove: that of the last job does it for those between.
      if trim_always or settled == 1 or settled == left then
        trim_always = call("XTRIM", events, "MAXLEN", "~", max_events) >= TRIMMED_AT_ONCE or max_events == "0"
      end
      local id, value = ids[place], ARGV[first + ITEM_SIZE * (place - 1) + VALUE]
      call("HSET", keys[place], "atm", made[place], "returnvalue", value, "finishedOn", now_ms)
      call("XADD", events, "*", "event", "completed", "jobId", id, "returnvalue", value, "prev", "active")
      members[2 * settled - 1], members[2 * settled] = now_ms, id
      codes[#codes + 1] = 0
    end

    if batch.open and not moved then
      moved = true
      -- Due jobs are moved.
      if #due > 0 then
        call("ZREM", delayed, unpack(due))
        for number, id in ipairs(due) do
          if priorities[number] == 0 then
            call("LPUSH", wait, id)
          else
            local turn = call("INCR", pc)
            call("ZADD", prioritized, priorities[number] * 0x100000000 + turn % 0x100000000, id)
          end
          call("XADD", events, "*", "event", "waiting", "jobId", id, "prev", "delayed")
          call("HSET", base .. id, "delay", "0")
        end
        call("ZADD", marker, "0", "0")
        for number = waiting + 1, ready do
          hashes[number] = call("HGETALL", base .. next_ids[number])
        end
      end
      -- All jobs that are fetched become active, the first by the command that a server without memory refuses, before
      -- anything else is written.
      local listed, all = math.min(ready, wanted), math.min(#next_ids, wanted)
      call("RPOPLPUSH", wait, active)
      if listed > 1 then
        call("LTRIM", wait, 0, -listed)
      end
      if all > listed then
        call("ZPOPMIN", prioritized, all - listed)
      end
      if all > 1 or (all == 1 and listed == 0) then
        call("LPUSH", active, unpack(next_ids, listed > 0 and 2 or 1, all))
      end
      if all < wanted then
        call("DEL", pc)
      end
    end

    if batch.open and fetched < #next_ids then
      -- The next job is fetched: locked, announced, and returned with its new fields.
      fetched = fetched + 1
      local id, hash, start = next_ids[fetched], hashes[fetched], starts[fetched]
      local job, size = base .. id, #hash
      new_locks[2 * fetched - 1], new_locks[2 * fetched] = job .. ":lock", token
      call("XADD", events, "*", "event", "active", "jobId", id, "prev", "waiting")
      hash[size + 1], hash[size + 2], hash[size + 3], hash[size + 4] = "processedOn", now_ms, "ats", start
      if worker ~= "" then
        call("HSET", job, "processedOn", now_ms, "pb", worker, "ats", start)
        hash[size + 5], hash[size + 6], hash[size + 7] = "pb", worker, id
      else
        call("HSET", job, "processedOn", now_ms, "ats", start)
        hash[size + 5] = id
      end
      jobs[#jobs + 1] = hash
      batch.open = #jobs < capacity
    elseif batch.open then
      -- There is none: the time of the next delayed job is returned.
      local soonest = call("ZRANGE", delayed, 0, 0, "WITHSCORES")
      batch.open = false
      batch.next_at = soonest[2] and tonumber(soonest[2]) / 0x1000 or 0
      is_idle = is_idle or soonest[2]
    end
    if not is_idle and settled == left and #jobs == 0 and call("LLEN", wait) == 0 and call("LLEN", active) == 0
      and call("ZCARD", prioritized) == 0 then
      call("XADD", events, "*", "event", "drained")
    end
  end
end

if fetched > 0 then
  set_locks(KEYS, ARGV, fetched, new_locks)
end
if settled > 0 then
  call("ZADD", completed, unpack(members))
end
if fetched > 0 then
  call("ZADD", marker, "0", "0")
end
return count
