--[[
  Claims stream entries that no worker renews any more.

  There are two kinds: entries of other consumers that were idle for long (XAUTOCLAIM), and entries of this consumer that
  the worker does not know of (a reply was lost, or an earlier process had the same name). An entry that was trimmed while
  it was pending is lost; it is counted.

  idle_ms      idle time of other consumers' entries
  own_idle_ms  idle time of this consumer's entries
  cursor       where the last call stopped
  until_ms     until when (the server's time) this call may claim: while a server hangs, running workers cannot renew
  unsettled_count   the first so many entry ids are of jobs that have ended: their outcome is yet to be settled, and they
               are not run again
  entry_id     entries that the worker knows of: first those, then the ones that it runs
  Reply        { next cursor, jobs, ids that were trimmed, 1 if there may be more to claim }
                 jobs: id, deliveries, envelope (or all fields if there is none), ... flat
]]
--@keys stream totals
--@args consumer_group consumer idle_ms own_idle_ms cursor limit until_ms unsettled_count
--@each entry_id
--@own entry_text entry_text
-- Pending entries that one call looks at: about a millisecond of the server's time.
local LOOKED_AT = 1000
local max_jobs, next_cursor = tonumber(limit), cursor
local unsettled, known = {}, {}
for at = FIRST_ITEM, #ARGV do
  known[ARGV[at]] = true
  unsettled[ARGV[at]] = at < FIRST_ITEM + unsettled_count
end
local time = redis.call("TIME")
if time[1] * 1000 + time[2] / 1000 > tonumber(until_ms) then
  return {cursor, {}, {}, 0}
end

local jobs, trimmed = {}, {}
local function append(entries)
  for _, entry in ipairs(entries) do
    if entry and entry[2] then
      local pending = redis.call("XPENDING", stream, consumer_group, entry[1], entry[1], 1)[1]
      local deliveries = pending and pending[4] or 1
      if unsettled[entry[1]] then
        -- Not delivered: settling its outcome compares the number of deliveries that the worker knows.
        redis.call("XCLAIM", stream, consumer_group, consumer, 0, entry[1], "RETRYCOUNT", deliveries - 1, "JUSTID")
      else
        jobs[#jobs + 1] = entry[1]
        jobs[#jobs + 1] = deliveries
        jobs[#jobs + 1] = entry_text(KEYS, ARGV, entry[2])
      end
    end
  end
end

local function drop_trimmed(id)
  redis.call("XACK", stream, consumer_group, id)
  trimmed[#trimmed + 1] = id
end

-- Entries of this consumer come first. A stream without the consumer group has nothing to claim.
local known_count = #ARGV - FIRST_ITEM + 1
local own = redis.pcall("XPENDING", stream, consumer_group, "IDLE", own_idle_ms, "-", "+", max_jobs + known_count, consumer)
if own.err then
  return {"0-0", jobs, trimmed, 0}
end
for _, one in ipairs(own) do
  if not known[one[1]] and #jobs / 3 < max_jobs then
    if #redis.call("XRANGE", stream, one[1], one[1]) == 0 then
      drop_trimmed(one[1])
    else
      append(redis.call("XCLAIM", stream, consumer_group, consumer, own_idle_ms, one[1]))
    end
  end
end

-- The server looks at ten times as many entries as it may claim: for a few, it is asked several times.
local wanted, looked_at = max_jobs - #jobs / 3, 0
while wanted > 0 and looked_at < LOOKED_AT do
  local reply = redis.call("XAUTOCLAIM", stream, consumer_group, consumer, idle_ms, next_cursor, "COUNT", wanted)
  next_cursor = reply[1]
  append(reply[2])
  for _, id in ipairs(reply[3] or {}) do
    drop_trimmed(id)
  end
  looked_at = looked_at + 10 * wanted
  wanted = next_cursor ~= "0-0" and max_jobs - #jobs / 3 or 0
end
if #trimmed > 0 then
  redis.call("HINCRBY", totals, "trimmed", #trimmed)
end
local more = next_cursor ~= "0-0" or #jobs / 3 >= max_jobs
return {next_cursor, jobs, trimmed, more and 1 or 0}
