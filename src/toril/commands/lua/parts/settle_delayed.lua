--[[
  Part of `settle.lua`: settles a run of jobs that return to the delayed set, from the settlement at `first` on; a run of
  one is left to the official script.

  It leaves what the official moveToDelayed would leave when run for one job after the other, with a third of the calls.
  Everything that could be special or fail is read before the first write.

  Returns how many jobs it settled, or nothing when the next one is not plain.
]]
--@keys active events stalled delayed meta marker
--@args base now_ms
--@each job_id kind token value options fields
local batch, first = ...
-- Lua passes at most some thousands of values to one call.
local MAX_RUN = 500
local SCORES_PER_MS = 0x1000

local call, try = redis.call, redis.pcall
local now = tonumber(now_ms)
local codes = batch.codes

-- Whether a key has another type than the command expects.
local function has_wrong_type(command, key)
  return type(try(command, key)) == "table"
end

-- --- reading ---------------------------------------------------------------------------------------------------------

local count, ids, keys, locks, named, delays = 0, {}, {}, {}, {}, {}
local at, last = first, #ARGV
while at <= last and count < MAX_RUN and ARGV[at + KIND] == "delayed" and ARGV[at + TOKEN] ~= "0"
  and not named[ARGV[at + JOB_ID]] do
  local delay = string.match(ARGV[at + VALUE], "^%d+$") and tonumber(ARGV[at + VALUE])
  if not delay then
    break
  end
  local id, job = ARGV[at + JOB_ID], base .. ARGV[at + JOB_ID]
  count = count + 1
  ids[count], keys[count], locks[count], delays[count], named[id] = id, job, job .. ":lock", delay, true
  at = at + ITEM_SIZE
end
if count < 2 then
  return
end
local tokens, made, fields = call("MGET", unpack(locks)), {}, {}
for place = 1, count do
  local item = first + ITEM_SIZE * (place - 1)
  local hash = try("HMGET", keys[place], "name", "atm")
  local before = string.match(hash[2] or "0", "^%d+$")
  local packed, readable = ARGV[item + FIELDS], true
  if packed ~= "" then
    readable, fields[place] = pcall(cmsgpack.unpack, packed)
    readable = readable and type(fields[place]) == "table"
  end
  if hash.err or not hash[1] or not before or not readable or tokens[place] ~= ARGV[item + TOKEN] then
    count = place - 1
    break
  end
  made[place] = tonumber(before)
end
if count < 2 or has_wrong_type("ZCARD", delayed) or has_wrong_type("ZCARD", marker) or has_wrong_type("SCARD", stalled)
  or has_wrong_type("XLEN", events) then
  return
end
local max_events = call("HGET", meta, "opts.maxLenEvents")

-- --- writing ---------------------------------------------------------------------------------------------------------

batch.begun = count

-- Mostly the jobs are the oldest ones of the active list, all together. Jobs that are not in the list are refused.
local oldest, together, missing = call("LRANGE", active, -count, -1), true, {}
local ours = {}
for place = 1, count do
  ours[ids[place]] = true
end
for _, id in ipairs(oldest) do
  together = together and ours[id]
  ours[id] = nil -- an id that is in the list twice must not hide another
end
if together and #oldest == count then
  call("LTRIM", active, 0, -count - 1)
else
  for place = 1, count do
    missing[place] = call("LREM", active, -1, ids[place]) == 0
  end
end
call("DEL", unpack(locks, 1, count))
call("SREM", stalled, unpack(ids, 1, count))

local members, scores = {}, {}
for place = 1, count do
  local item, written = first + ITEM_SIZE * (place - 1), fields[place] or {}
  if missing[place] then
    if #written > 0 then
      call("HSET", keys[place], unpack(written))
    end
    codes[#codes + 1] = -3
    batch.refused = true
  else
    local due = now + delays[place]
    local lowest, highest, score = due * SCORES_PER_MS, (due + 1) * SCORES_PER_MS - 1, scores[due]
    if not score then
      score = tonumber(call("ZREVRANGEBYSCORE", delayed, highest, lowest, "WITHSCORES", "LIMIT", 0, 1)[2])
    end
    score = score and math.min(score + 1, highest) or lowest
    scores[due] = score
    members[#members + 1], members[#members + 2] = score, ids[place]
    written[#written + 1], written[#written + 2] = "delay", ARGV[item + VALUE]
    if ARGV[item + OPTIONS] == "0" then
      written[#written + 1], written[#written + 2] = "atm", made[place] + 1
    end
    call("HSET", keys[place], unpack(written))
    if not max_events then
      max_events = "10000"
      call("HSET", meta, "opts.maxLenEvents", max_events)
    end
    call("XADD", events, "MAXLEN", "~", max_events, "*", "event", "delayed", "jobId", ids[place], "delay", due)
    codes[#codes + 1] = 0
  end
end
if #members > 0 then
  call("ZADD", delayed, unpack(members))
  call("ZADD", marker, tonumber(call("ZRANGE", delayed, 0, 0, "WITHSCORES")[2]) / SCORES_PER_MS, "1")
end
return count
