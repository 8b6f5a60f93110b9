--[[
  Delays waiting jobs whose names a worker does not know, before it fetches them: what a fetch and a settlement of kind
  "delayed" would leave, for a third of the server's time. Jobs that need more stay where they are: next runs of
  schedulers, jobs that were refused for too long, hashes that cannot be read. `parts/unknown_names.lua` decides on names.

  limit  how many jobs to look at, from the last on, above zero
  field  of the hash, for the note about refusals
  Reply  { how many jobs were looked at, name, how many of it were delayed, … }
]]
--@keys wait delayed meta events marker announced
--@args base now_ms limit factor first_ms longest_ms give_up_ms field
--@each known
--@own unknown_names unknown_names
local SCORES_PER_MS = 0x1000
local call, now = redis.call, tonumber(now_ms)

local names = unknown_names(KEYS, ARGV)
if names.is_known["*"] then
  return {0}
end

-- The note of a job that is refused now, and its delay (ms); nothing when another fetch must decide.
local function refusal(hash)
  local started = string.match(hash[2] or "0", "^%d+$")
  if not hash[1] or names.is_known[hash[1]] or hash[4] or not started then
    return
  end
  local count, first, noted_at = string.match(hash[3] or "", "^(%d+) (%d+) (%d+)$")
  if noted_at ~= started then
    count, first = nil, nil
  end
  local delay
  count, first, delay = names.refuse(tonumber(count), tonumber(first))
  if count then
    return string.format("%.0f %.0f %s", count, first, started), delay
  end
end

local window, kept, refused, counts = call("LRANGE", wait, -tonumber(limit), -1), {}, {}, {}
for _, id in ipairs(window) do
  local hash = redis.pcall("HMGET", base .. id, "name", "ats", field, "rjk")
  local note, delay
  if not hash.err then
    note, delay = refusal(hash)
  end
  if note then
    refused[#refused + 1] = {id, note, delay}
    counts[hash[1]] = (counts[hash[1]] or 0) + 1
  else
    kept[#kept + 1] = id
  end
end
if #refused == 0 then
  return {#window}
end

-- All that could fail is read before the first write: a job must not leave one list and enter no other.
call("ZCARD", delayed)
call("ZCARD", marker)
call("XLEN", events)
local max_events = call("HGET", meta, "opts.maxLenEvents") or "10000"
call("LTRIM", wait, 0, -#window - 1)
if #kept > 0 then
  call("RPUSH", wait, unpack(kept))
end
local members, scores = {}, {}
-- The last of the list is the first to be fetched.
for place = #refused, 1, -1 do
  local id, note, delay = unpack(refused[place])
  local due = now + delay
  local lowest, highest, score = due * SCORES_PER_MS, (due + 1) * SCORES_PER_MS - 1, scores[due]
  score = score or tonumber(call("ZREVRANGEBYSCORE", delayed, highest, lowest, "WITHSCORES", "LIMIT", 0, 1)[2])
  score = score and math.min(score + 1, highest) or lowest
  scores[due] = score
  members[#members + 1], members[#members + 2] = score, id
  call("HSET", base .. id, "delay", delay, field, note)
  call("XADD", events, "MAXLEN", "~", max_events, "*", "event", "delayed", "jobId", id, "delay", due)
end
call("ZADD", delayed, unpack(members))
call("ZADD", marker, tonumber(call("ZRANGE", delayed, 0, 0, "WITHSCORES")[2]) / SCORES_PER_MS, "1")

local reply = {#window}
for name, count in pairs(counts) do
  reply[#reply + 1], reply[#reply + 2] = name, count
end
return reply
