--[[
  Takes over stream entries that nobody renews any more.

  Two kinds: entries of other consumers that were idle for long (XAUTOCLAIM), and entries of our own name that we do not
  know of (a reply was lost, or an earlier process had our name). An entry that was trimmed while it was pending is gone:
  it is counted, so that somebody notices.

  KEYS   1 stream, 2 totals
  ARGV   1 group, 2 consumer, 3 idle time (ms) of others' entries, 4 idle time (ms) of our own, 5 cursor, 6 how many,
         7 until when (ms) this call may claim: a server that hung for longer has kept living workers from renewing,
         8 how many entries we have to settle and not to run again, their ids, then the ids of those that we run
  Reply  { next cursor, jobs, ids that were trimmed, 1 if there may be more to claim }
           jobs: id, deliveries, envelope (or all fields if there is none), ... flat
]]
--@own entry_text entry_text
-- Pending entries that one call looks at: about a millisecond of the server's time.
local LOOKED_AT = 1000
local group, consumer, cursor, limit = ARGV[1], ARGV[2], ARGV[5], tonumber(ARGV[6])
local FIRST = 9
local owed, in_hand = {}, {}
for at = FIRST, #ARGV do
  in_hand[ARGV[at]] = true
  owed[ARGV[at]] = at < FIRST + ARGV[8]
end
local time = redis.call("TIME")
if time[1] * 1000 + time[2] / 1000 > tonumber(ARGV[7]) then
  return {cursor, {}, {}, 0}
end

local jobs, trimmed = {}, {}
local function keep(entries)
  for _, entry in ipairs(entries) do
    if entry and entry[2] then
      local pending = redis.call("XPENDING", KEYS[1], group, entry[1], entry[1], 1)[1]
      local deliveries = pending and pending[4] or 1
      if owed[entry[1]] then
        -- Not delivered: its outcome, which is yet to be written, must find the number that it knows.
        redis.call("XCLAIM", KEYS[1], group, consumer, 0, entry[1], "RETRYCOUNT", deliveries - 1, "JUSTID")
      else
        jobs[#jobs + 1] = entry[1]
        jobs[#jobs + 1] = deliveries
        jobs[#jobs + 1] = entry_text(KEYS, ARGV, entry[2])
      end
    end
  end
end

local function lose(id)
  redis.call("XACK", KEYS[1], group, id)
  trimmed[#trimmed + 1] = id
end

-- Our own name first: these are ours without any doubt. A stream without our group has nothing to claim.
local known = #ARGV - FIRST + 1
local own = redis.pcall("XPENDING", KEYS[1], group, "IDLE", ARGV[4], "-", "+", limit + known, consumer)
if own.err then
  return {"0-0", jobs, trimmed, 0}
end
for _, one in ipairs(own) do
  if not in_hand[one[1]] and #jobs / 3 < limit then
    if #redis.call("XRANGE", KEYS[1], one[1], one[1]) == 0 then
      lose(one[1])
    else
      keep(redis.call("XCLAIM", KEYS[1], group, consumer, ARGV[4], one[1]))
    end
  end
end

-- The server looks at ten times as many entries as it may claim: for a few, it is asked several times.
local wanted, looked_at = limit - #jobs / 3, 0
while wanted > 0 and looked_at < LOOKED_AT do
  local reply = redis.call("XAUTOCLAIM", KEYS[1], group, consumer, ARGV[3], cursor, "COUNT", wanted)
  cursor = reply[1]
  keep(reply[2])
  for _, id in ipairs(reply[3] or {}) do
    lose(id)
  end
  looked_at = looked_at + 10 * wanted
  wanted = cursor ~= "0-0" and limit - #jobs / 3 or 0
end
if #trimmed > 0 then
  redis.call("HINCRBY", KEYS[2], "trimmed", #trimmed)
end
local more = cursor ~= "0-0" or #jobs / 3 >= limit
return {cursor, jobs, trimmed, more and 1 or 0}
