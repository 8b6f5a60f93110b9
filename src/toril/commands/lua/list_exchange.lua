--[[
  Settles a batch of list jobs and takes up to N new ones, in one call.

  At most once: a job leaves the list when it is taken, and its lock says who runs it. An outcome is refused when another
  worker holds the lock. With reliable pickup a taken job stands in the worker's own list until it is settled, and an
  outcome counts only while it stands there. What is written elsewhere is written before the job is let go. A step that
  raises fails alone.

  A settled job's lock keeps a note of its token for a while: an outcome handed in twice is recognised. Such a note does
  not lock anything.

  KEYS   1 list, 2 scheduled, 3 dlq, 4 totals, 5 this worker's list, 6 consumers, 7 stalls by job id
  ARGV   1 start of lock keys, 2 now (ms), 3 how many to take, 4 token, 5 lock duration (ms), 6 consumer for reliable
         pickup, or "", 7 start of result keys, then six words for each settlement:
           kind, job id, token, envelope as it was taken, due (ms), text
           kind "done": let go; text = result to keep for due (ms), or ""
           kind "retry": text = envelope, due = when it runs again; "later": the same, but no attempt failed
           kind "again": text = envelope, back to where it is taken next
           kind "dead": text = dead letter
  Reply  { codes, jobs, due (ms) of the next scheduled job or -1, error of the pickup or "", jobs left in the list }
           codes: 0 accepted, 1 accepted before, -2 nobody's, -6 another's, or the text of an error
           jobs: envelope, stalls, ... flat
]]
local locks, now, room, token, duration = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local consumer = ARGV[6]
local reliable = consumer ~= ""
local results = ARGV[7]
local FIRST = 8
-- Moves at most this many due jobs in one call: about a millisecond of the server's time.
local DUE_AT_ONCE = 500
-- As long as a worker may need to reconnect and hand in an outcome again.
local NOTE_MS = 60000
local NOTE = "settled:"
-- A job whose twin is running is looked at again after at most this time.
local TWIN_MS = 5000

local has_stalls = redis.call("EXISTS", KEYS[7]) == 1
local counted = {}
local function count(what)
  counted[what] = (counted[what] or 0) + 1
end

local function hold(id, its_token, taken)
  local holder = redis.call("GET", locks .. id)
  if holder == NOTE .. its_token then
    return 1
  elseif holder and holder ~= its_token and string.sub(holder, 1, #NOTE) ~= NOTE then
    return -6
  elseif reliable and not redis.call("LPOS", KEYS[5], taken) then
    return -2
  end
  return 0
end

local function let_go(kind, id, its_token, taken)
  if reliable then
    redis.call("LREM", KEYS[5], 1, taken)
  end
  if has_stalls then
    redis.call("HDEL", KEYS[7], id)
  end
  if kind ~= "done" then
    redis.call("SET", locks .. id, NOTE .. its_token, "PX", NOTE_MS)
  elseif redis.call("GET", locks .. id) == its_token then
    redis.call("DEL", locks .. id)
  end
end

local function settled(kind, id, its_token, taken, due, text)
  local code = hold(id, its_token, taken)
  if code ~= 0 then
    return code
  end
  if kind == "retry" or kind == "later" then
    redis.call("ZADD", KEYS[2], due, text)
    if kind == "retry" then
      count("retried")
    end
  elseif kind == "again" then
    redis.call("RPUSH", KEYS[1], text)
  elseif kind == "dead" then
    redis.call("XADD", KEYS[3], "*", "envelope", text)
    count("dead")
  else
    if text ~= "" then
      -- A server without memory keeps no result; the job is done all the same.
      redis.pcall("SET", results .. id, text, "PX", due)
    end
    count("completed")
  end
  let_go(kind, id, its_token, taken)
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
    redis.call("LPUSH", KEYS[1], envelope)
    redis.call("ZREM", KEYS[2], envelope)
  end
  return 0
end

-- The id of a job without reading all of its payload: in the canonical form it comes first.
local function id_of(envelope)
  local id = string.match(envelope, '^%s*{%s*"job_id"%s*:%s*"([^"\\]+)"')
  if id then
    return id
  end
  local ok, fields = pcall(cjson.decode, envelope)
  if ok and type(fields) == "table" and type(fields.job_id) == "string" then
    return fields.job_id
  end
  return nil
end

local function lock(id)
  if id == "" then
    return true
  end
  if redis.call("SET", locks .. id, token, "NX", "PX", duration) then
    return true
  end
  if string.sub(redis.call("GET", locks .. id) or NOTE, 1, #NOTE) == NOTE then
    redis.call("SET", locks .. id, token, "PX", duration)
    return true
  end
  return false
end

local function pop()
  if not reliable then
    return redis.call("RPOP", KEYS[1], room) or {}
  end
  local taken = {}
  while #taken < room do
    local envelope = redis.call("LMOVE", KEYS[1], KEYS[5], "RIGHT", "LEFT")
    if not envelope then
      break
    end
    taken[#taken + 1] = envelope
  end
  return taken
end

local function put_off(id, envelope)
  local rest = redis.call("PTTL", locks .. id)
  redis.call("ZADD", KEYS[2], now + math.min(math.max(rest, 100), TWIN_MS), envelope)
  if reliable then
    redis.call("LREM", KEYS[5], 1, envelope)
  end
end

local function take(jobs)
  for _, envelope in ipairs(pop()) do
    local id = id_of(envelope)
    -- What was popped must be delivered, whatever is wrong with its lock.
    local ok, locked = pcall(lock, id or "")
    if id and ok and not locked then
      put_off(id, envelope)
    else
      jobs[#jobs + 1] = envelope
      jobs[#jobs + 1] = has_stalls and id and redis.call("HGET", KEYS[7], id) or "0"
    end
  end
  return 0
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
  local steps = {attempt(move_due)}
  if reliable then
    steps[#steps + 1] = attempt(function() redis.call("ZADD", KEYS[6], now, consumer) return 0 end)
  end
  steps[#steps + 1] = attempt(take, jobs)
  for _, step in ipairs(steps) do
    if step ~= 0 then
      trouble = step
    end
  end
end
local next_due = redis.call("ZRANGE", KEYS[2], 0, 0, "WITHSCORES")[2]
return {codes, jobs, next_due or "-1", trouble, redis.call("LLEN", KEYS[1])}
