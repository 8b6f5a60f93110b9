--[[
  Part of `settle.lua`: the short way to one job, and for the one that it follows, if that is plain. This is all that a
  worker without concurrency needs. The same as `settle_many` without anything that a batch needs: there, preparing
  costs as much as the work itself.

  Gives the reply of the whole script, or nothing, and nothing has happened, when anything is special.
]]
local call, try = redis.call, redis.pcall
local base, now, id, value = ARGV[1], ARGV[2], ARGV[8], ARGV[11]
local wait, active, events = KEYS[1], KEYS[2], KEYS[4]
local job, lock, fields

local meta = call("HMGET", KEYS[9], "paused", "concurrency", "max", "opts.maxLenEvents")
if meta[1] or meta[2] or meta[3] then
  return
end
if id then
  job = base .. id
  lock = job .. ":lock"
  fields = try("HMGET", job, "name", "parentKey", "parent", "deid", "atm")
  if not fields[1] or fields[2] or fields[3] or fields[4] or (fields[5] and not tonumber(fields[5]))
    or not meta[4] or not string.find(meta[4], "^%d+$") or call("GET", lock) ~= ARGV[10]
    or call("EXISTS", KEYS[5], job .. ":dependencies", job .. ":unsuccessful") > 0 then
    return
  end
end

-- The successor: the one that waits longest, unless a delayed job is due or it is a marker of the versions before 5.
local successor = call("LINDEX", wait, -1)
if not successor or successor == id or string.find(successor, "0:", 1, true) == 1
  or #call("ZRANGEBYSCORE", KEYS[7], 0, (now + 1) * 0x1000 - 1, "LIMIT", 0, 1) > 0 then
  return
end
local next = base .. successor
local hash = try("HGETALL", next)
local size, starts = #hash, 0
for at = 1, size, 2 do
  if hash[at] == "ats" then
    starts = tonumber(hash[at + 1])
    break
  end
end
if hash.err or not starts then
  return
end
starts = starts == 0 and "1" or tostring(starts + 1)

if id then
  -- The first write: one that is refused, or finds nothing to remove, has changed nothing.
  local removed = try("LREM", active, -1, id)
  if removed == 0 or type(removed) == "table" then
    return
  end
  call("DEL", lock)
  call("XTRIM", events, "MAXLEN", "~", meta[4])
  call("HSET", job, "atm", fields[5] and fields[5] + 1 or "1", "returnvalue", value, "finishedOn", now)
  call("ZADD", KEYS[12], now, id)
  call("XADD", events, "*", "event", "completed", "jobId", id, "returnvalue", value, "prev", "active")
end

-- A full server refuses this one, unless something was written before.
if type(try("RPOPLPUSH", wait, active)) == "table" then
  return
end
call("SET", next .. ":lock", ARGV[4], "PX", ARGV[5])
call("XADD", events, "*", "event", "active", "jobId", successor, "prev", "waiting")
hash[size + 1], hash[size + 2], hash[size + 3], hash[size + 4] = "processedOn", now, "ats", starts
if ARGV[6] ~= "" then
  call("HSET", next, "processedOn", now, "pb", ARGV[6], "ats", starts)
  hash[size + 5], hash[size + 6], hash[size + 7] = "pb", ARGV[6], successor
else
  call("HSET", next, "processedOn", now, "ats", starts)
  hash[size + 5] = successor
end
call("ZADD", KEYS[11], 0, "0")
return {0, {hash}, 0, 0, ""}
