--[[
  Settles a batch of finished jobs and takes up to N new ones, in one call.

  Each step is the official body on the same keys and arguments that Node would send, in the order given. A step that
  raises (a poisoned hash, a wrong type) fails alone: the others are done, and what was taken before is handed out. When
  the server itself refuses to write, it does so before the first write: then the whole call is refused.

  A job that a finish fetched is locked by upstream under its predecessor's token; here it is under the pickup's, like
  all others of the call.

  KEYS   1 wait, 2 active, 3 prioritized, 4 events, 5 stalled, 6 limiter, 7 delayed, 8 paused, 9 meta, 10 pc, 11 marker,
         12 completed, 13 failed, 14 metrics:completed, 15 metrics:failed
  ARGV   1 key base, 2 now (ms), 3 how many to take, 4 packed pickup options,
         then six words for each settlement:
           id, kind, token, value, options, fields
           kind "completed" | "failed": value = result or reason, options = packed, fields = packed or ""
           kind "delayed": value = delay (ms), options = "1" to leave the attempt uncounted, fields = packed or ""
           kind "retry": value = push command, fields = packed or ""
           kind "wait": given back, attempt uncounted
  Reply  { codes, jobs, rate limit ttl (ms), next delayed job at (ms), error of the pickup or "" }
           codes: a number for each settlement, or the text of its error
           jobs: { id, { field, value, ... } } for each job taken
]]
--@official finish moveToFinished
--@official take moveToActive
--@official postpone moveToDelayed
--@official again retryJob
--@official giveBack moveJobFromActiveToWait

local base, now, room, pickup = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local jobs, codes = {}, {}
local limited, nextAt = 0, 0
local open = room > 0
local holder = cmsgpack.unpack(pickup)

local takeKeys = {KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]}
local takeArgs = {base, now, pickup}

-- Keeps what a pickup brought, and closes the gate when the queue had nothing to give.
local function keep(reply)
  if type(reply) ~= "table" then
    open = false
    return
  end
  if reply[2] and reply[2] ~= 0 then
    jobs[#jobs + 1] = {reply[2], reply[1]}
    open = #jobs < room
    return
  end
  limited = tonumber(reply[3]) or 0
  nextAt = tonumber(reply[4]) or 0
  open = false
end

local function finished(id, kind, token, value, options, fields)
  local target, metrics, property = KEYS[12], KEYS[14], "returnvalue"
  if kind == "failed" then
    target, metrics, property = KEYS[13], KEYS[15], "failedReason"
  end
  local reply = finish(
    {KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10],
     target, base .. id, metrics, KEYS[11]},
    {id, now, property, value, kind, open and "1" or "0", base, options, fields})
  if type(reply) == "table" then
    keep(reply)
    if reply[2] and reply[2] ~= 0 and token ~= holder.token then
      redis.call("SET", base .. reply[2] .. ":lock", holder.token, "PX", holder.lockDuration)
    end
    return 0
  end
  if reply == 0 and open then
    open = false
  end
  return reply
end

local function settled(id, kind, token, value, options, fields)
  if kind == "completed" or kind == "failed" then
    return finished(id, kind, token, value, options, fields)
  elseif kind == "delayed" then
    return postpone({KEYS[11], KEYS[2], KEYS[3], KEYS[7], base .. id, KEYS[4], KEYS[9], KEYS[5]},
      {base, now, id, token, value, options, fields})
  elseif kind == "retry" then
    return again({KEYS[2], KEYS[1], KEYS[8], base .. id, KEYS[9], KEYS[4], KEYS[7], KEYS[3], KEYS[10], KEYS[11], KEYS[5]},
      {base, now, value, id, token, fields})
  elseif kind == "wait" then
    local code = giveBack({KEYS[2], KEYS[1], KEYS[5], KEYS[8], KEYS[9], KEYS[6], KEYS[3], KEYS[11], KEYS[4]},
      {id, token, base .. id})
    return code > 0 and 0 or code
  end
  return redis.error_reply("ERR unknown settlement " .. kind)
end

local function textOf(failure)
  return type(failure) == "table" and failure.err or tostring(failure)
end

-- What the server says when it takes no writes at all; it never says so in the middle of a script.
local function refusesWrites(text)
  for _, words in ipairs({"READONLY You", "OOM command", "MISCONF ", "NOREPLICAS "}) do
    local at = string.find(text, words, 1, true)
    if at then
      return string.sub(text, at)
    end
  end
end

for at = 5, #ARGV, 6 do
  local ok, code = pcall(settled, ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5])
  if not ok or type(code) == "table" then
    code = textOf(code)
    local refusal = refusesWrites(code)
    if refusal then
      return {err = refusal}
    end
  end
  codes[#codes + 1] = code
end

local trouble = ""
while open do
  local ok, reply = pcall(take, takeKeys, takeArgs)
  if ok then
    keep(reply)
  else
    trouble = textOf(reply)
    open = false
  end
end
if trouble ~= "" and #codes == 0 and #jobs == 0 then
  return {err = refusesWrites(trouble) or trouble}
end
return {codes, jobs, limited, nextAt, trouble}
