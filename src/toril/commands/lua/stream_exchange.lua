--[[
  Settles a batch of stream jobs and takes up to N new ones, in one call.

  An outcome counts only while the entry is pending for this consumer and was not delivered again since: a late worker
  changes nothing. What is written elsewhere (a retry, a dead letter) is written before the entry is acknowledged, in the
  same call, so that a job is never in both places nor in none. A step that raises fails alone.

  KEYS   1 stream, 2 scheduled, 3 dlq, 4 totals
  ARGV   1 group, 2 consumer, 3 now (ms), 4 how many to take, 5 how many entries the stream keeps ("" for all),
         6 start of result keys, then six words for each settlement:
           entry id, deliveries, kind, job id, due (ms), text
           kind "done": acknowledged; text = result to keep for due (ms), or ""
           kind "retry": text = envelope, due = when it runs again; "later": the same, but no attempt failed
           kind "again": text = envelope, back to the end of the stream at once
           kind "dead": text = dead letter
  Reply  { codes, jobs, due (ms) of the next scheduled job or -1, error of the pickup or "", id to wait after or "" }
           codes: 0 accepted, 1 accepted before, -2 nobody's, -6 another's, or the text of an error
           jobs: id, deliveries, envelope (or all fields if there is none), ... flat
]]
local group, consumer, now, room, keep = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local results = ARGV[6]
local FIRST = 7
-- Moves at most this many due jobs in one call: about a millisecond of the server's time.
local DUE_AT_ONCE = 500
-- A page read for trimming holds about this many bytes, whatever a job weighs.
local TRIM_BYTES = 1048576
-- Redis frees whole nodes of about 100 entries; less is not worth a look.
local TRIM_STEP = 100

local counted = {}
local function count(what)
  counted[what] = (counted[what] or 0) + 1
end

local function hold(id, deliveries)
  local found = redis.call("XPENDING", KEYS[1], group, id, id, 1)[1]
  if not found then
    return -2
  elseif found[2] ~= consumer or tostring(found[4]) ~= deliveries then
    return -6
  end
  return 0
end

local function settled(id, deliveries, kind, job, due, text)
  local code = hold(id, deliveries)
  if code ~= 0 then
    return code
  end
  if kind == "retry" or kind == "later" then
    redis.call("ZADD", KEYS[2], due, text)
    if kind == "retry" then
      count("retried")
    end
  elseif kind == "again" then
    redis.call("XADD", KEYS[1], "*", "envelope", text)
  elseif kind == "dead" then
    redis.call("XADD", KEYS[3], "*", "envelope", text)
    count("dead")
  else
    if text ~= "" then
      -- A server without memory keeps no result; the job is done all the same.
      redis.pcall("SET", results .. job, text, "PX", due)
    end
    count("completed")
  end
  redis.call("XACK", KEYS[1], group, id)
  return 0
end

local function attempt(step, ...)
  local ok, reply = pcall(step, ...)
  if ok and type(reply) ~= "table" then
    return reply
  end
  return type(reply) == "table" and reply.err or tostring(reply)
end

local function move_due()
  local due = redis.call("ZRANGEBYSCORE", KEYS[2], "-inf", now, "LIMIT", 0, DUE_AT_ONCE)
  for _, envelope in ipairs(due) do
    redis.call("XADD", KEYS[1], "*", "envelope", envelope)
    redis.call("ZREM", KEYS[2], envelope)
  end
  return 0
end

local function envelope_of(fields)
  for i = 1, #fields, 2 do
    if fields[i] == "envelope" then
      return fields[i + 1]
    end
  end
  return fields
end

local function read()
  return redis.pcall("XREADGROUP", "GROUP", group, consumer, "COUNT", room, "STREAMS", KEYS[1], ">")
end

local function take(jobs)
  local reply = read()
  if type(reply) == "table" and reply.err and string.find(reply.err, "NOGROUP", 1, true) then
    redis.call("XGROUP", "CREATE", KEYS[1], group, "0", "MKSTREAM")
    reply = read()
  end
  if type(reply) ~= "table" then
    return 0
  elseif reply.err then
    return reply.err
  end
  for _, entry in ipairs(reply[1][2]) do
    jobs[#jobs + 1] = entry[1]
    jobs[#jobs + 1] = 1
    jobs[#jobs + 1] = envelope_of(entry[2])
  end
  return 0
end

local function pairs_of(flat)
  local fields = {}
  for i = 1, #flat, 2 do
    fields[flat[i]] = flat[i + 1]
  end
  return fields
end

local function earlier(one, other)
  local ms, seq = string.match(one, "^(%d+)-(%d+)$")
  local other_ms, other_seq = string.match(other, "^(%d+)-(%d+)$")
  ms, other_ms = tonumber(ms), tonumber(other_ms)
  return ms < other_ms or (ms == other_ms and tonumber(seq) < tonumber(other_seq))
end

-- The oldest entry that some group still needs: pending there, or not yet delivered after this one.
local function oldest_needed()
  local oldest
  for _, flat in ipairs(redis.call("XINFO", "GROUPS", KEYS[1])) do
    local info = pairs_of(flat)
    local id = info["last-delivered-id"]
    if info["pending"] > 0 then
      id = redis.call("XPENDING", KEYS[1], info["name"])[2]
    end
    if not oldest or earlier(id, oldest) then
      oldest = id
    end
  end
  return oldest
end

local function trim()
  local excess = redis.call("XLEN", KEYS[1]) - keep
  if excess < TRIM_STEP then
    return 0
  end
  local first = redis.call("XRANGE", KEYS[1], "-", "+", "COUNT", 1)[1]
  local weight = 1
  for _, word in ipairs(first[2]) do
    weight = weight + #word
  end
  local page = math.min(excess, 1000, math.max(1, math.floor(TRIM_BYTES / weight)))
  local done = redis.call("XRANGE", KEYS[1], "-", "(" .. oldest_needed(), "COUNT", page)
  if #done > 0 then
    redis.call("XTRIM", KEYS[1], "MINID", "~", done[#done][1])
  end
  return 0
end

local function last_delivered()
  for _, flat in ipairs(redis.call("XINFO", "GROUPS", KEYS[1])) do
    local info = pairs_of(flat)
    if info["name"] == group then
      return info["last-delivered-id"]
    end
  end
  return "0-0"
end

local codes, jobs, trouble = {}, {}, ""
for at = FIRST, #ARGV, 6 do
  codes[#codes + 1] =
    attempt(settled, ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5])
end
for what, number in pairs(counted) do
  attempt(redis.call, "HINCRBY", KEYS[4], what, number)
end
if room > 0 then
  for _, step in ipairs({attempt(move_due), attempt(take, jobs)}) do
    if step ~= 0 then
      trouble = step
    end
  end
end
if keep and #codes > 0 then
  attempt(trim)
end
local next_due = redis.call("ZRANGE", KEYS[2], 0, 0, "WITHSCORES")[2]
local after = ""
if room > 0 and #jobs == 0 and trouble == "" then
  after = last_delivered()
end
return {codes, jobs, next_due or "-1", trouble, after}
