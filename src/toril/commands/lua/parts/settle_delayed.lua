--[[
  Part of `settle.lua`: the short way for jobs that go back to the delayed set. Settles the run of them that begins at
  word `first`; a run of one is left to the official script.

  It leaves what the official moveToDelayed would leave when run for one job after the other, with a third of the calls.
  Everything that could be special or go wrong is looked at before the first write.

  Gives how many jobs it settled, or nothing when the next one is special.
]]
local batch, first = ...
-- Lua hands at most some thousands of values to one call.
local RUN = 500
local SPAN = 0x1000 -- the scores of one millisecond

local call, try = redis.call, redis.pcall
local base, now = ARGV[1], tonumber(ARGV[2])
local active, events, stalled, delayed, metaKey, marker = KEYS[2], KEYS[4], KEYS[5], KEYS[7], KEYS[9], KEYS[11]
local codes = batch.codes

-- Whether a key holds something else than it should.
local function isWrong(ask, key)
  return type(try(ask, key)) == "table"
end

-- --- looking ---------------------------------------------------------------------------------------------------------

local count, ids, keys, locks, named, delays = 0, {}, {}, {}, {}, {}
local at, last = first, #ARGV
while at <= last and count < RUN and ARGV[at + 1] == "delayed" and ARGV[at + 2] ~= "0" and not named[ARGV[at]] do
  local delay = string.match(ARGV[at + 3], "^%d+$") and tonumber(ARGV[at + 3])
  if not delay then
    break
  end
  local id, job = ARGV[at], base .. ARGV[at]
  count = count + 1
  ids[count], keys[count], locks[count], delays[count], named[id] = id, job, job .. ":lock", delay, true
  at = at + 6
end
if count < 2 then
  return
end
local tokens, made, fields = call("MGET", unpack(locks)), {}, {}
for place = 1, count do
  local word = first + 6 * (place - 1)
  local kept = try("HMGET", keys[place], "name", "atm")
  local before = string.match(kept[2] or "0", "^%d+$")
  local packed, readable = ARGV[word + 5], true
  if packed ~= "" then
    readable, fields[place] = pcall(cmsgpack.unpack, packed)
    readable = readable and type(fields[place]) == "table"
  end
  if kept.err or not kept[1] or not before or not readable or tokens[place] ~= ARGV[word + 2] then
    count = place - 1
    break
  end
  made[place] = tonumber(before)
end
if count < 2 or isWrong("ZCARD", delayed) or isWrong("ZCARD", marker) or isWrong("SCARD", stalled)
  or isWrong("XLEN", events) then
  return
end
local maxEvents = call("HGET", metaKey, "opts.maxLenEvents")

-- --- writing ---------------------------------------------------------------------------------------------------------

batch.begun = count

-- Mostly they are the oldest of the active ones, all together. Those that are not on the list are strangers.
local oldest, together, strangers = call("LRANGE", active, -count, -1), true, {}
local ours = {}
for place = 1, count do
  ours[ids[place]] = true
end
for _, id in ipairs(oldest) do
  together = together and ours[id]
  ours[id] = nil -- one that stands there twice must not hide another
end
if together and #oldest == count then
  call("LTRIM", active, 0, -count - 1)
else
  for place = 1, count do
    strangers[place] = call("LREM", active, -1, ids[place]) == 0
  end
end
call("DEL", unpack(locks, 1, count))
call("SREM", stalled, unpack(ids, 1, count))

local members, scores = {}, {}
for place = 1, count do
  local word, told = first + 6 * (place - 1), fields[place] or {}
  if strangers[place] then
    if #told > 0 then
      call("HSET", keys[place], unpack(told))
    end
    codes[#codes + 1] = -3
    batch.refused = true
  else
    local due = now + delays[place]
    local lowest, highest, score = due * SPAN, (due + 1) * SPAN - 1, scores[due]
    if not score then
      score = tonumber(call("ZREVRANGEBYSCORE", delayed, highest, lowest, "WITHSCORES", "LIMIT", 0, 1)[2])
    end
    score = score and math.min(score + 1, highest) or lowest
    scores[due] = score
    members[#members + 1], members[#members + 2] = score, ids[place]
    told[#told + 1], told[#told + 2] = "delay", ARGV[word + 3]
    if ARGV[word + 4] == "0" then
      told[#told + 1], told[#told + 2] = "atm", made[place] + 1
    end
    call("HSET", keys[place], unpack(told))
    if not maxEvents then
      maxEvents = "10000"
      call("HSET", metaKey, "opts.maxLenEvents", maxEvents)
    end
    call("XADD", events, "MAXLEN", "~", maxEvents, "*", "event", "delayed", "jobId", ids[place], "delay", due)
    codes[#codes + 1] = 0
  end
end
if #members > 0 then
  call("ZADD", delayed, unpack(members))
  call("ZADD", marker, tonumber(call("ZRANGE", delayed, 0, 0, "WITHSCORES")[2]) / SPAN, "1")
end
return count
