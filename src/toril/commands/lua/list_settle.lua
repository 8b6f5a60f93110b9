--[[
  Settles a batch of list jobs and takes up to N new ones, in one call.

  At most once: a job leaves the list when it is taken, and its lock says who runs it. An outcome is refused when another
  worker holds the lock. With reliable pickup a taken job stands in the worker's own list until it is settled, and an
  outcome counts only while it stands there. Which jobs of a reliable pickup have not begun is written down until the
  worker says that it knows of them: a delivery that was lost before it came to a handler costs no attempt.

  A settled job's lock keeps a note of its token for a while: an outcome handed in twice is recognised. Such a note does
  not lock anything.

  KEYS   1 list, 2 scheduled, 3 dlq, 4 totals, 5 this worker's list, 6 consumers, 7 stalls by job id,
         8 this worker's jobs that have not begun, by the token of their pickup
  ARGV   1 start of lock keys, 2 now (ms), 3 how many to take, 4 token, 5 lock duration (ms), 6 consumer for reliable
         pickup, or "", 7 start of result keys, then settlements (`parts/envelope_outcomes.lua`): the reference is the
         envelope as it was taken, the fence the token it was taken under
  Reply  { codes, jobs, due (ms) of the next scheduled job or -1, error of the pickup or "", jobs left in the list }
           jobs: envelope, stalls, ... flat
]]
--@own outcomes envelope_outcomes
--@own envelope_id envelope_id
local locks, now, room, token, duration = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local consumer = ARGV[6]
local reliable = consumer ~= ""
local FIRST = 8
-- As long as a worker may need to reconnect and hand in an outcome again.
local NOTE_MS = 60000
local NOTE = "settled:"
-- A job whose twin is running is looked at again after at most this time.
local TWIN_MS = 5000

local has_stalls = redis.call("EXISTS", KEYS[7]) == 1
local queue = {results = ARGV[7]}

function queue.hold(id, taken, its_token)
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

function queue.let_go(kind, id, taken, its_token)
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

function queue.add(envelope)
  redis.call("LPUSH", KEYS[1], envelope)
end

function queue.give_back(envelope)
  redis.call("RPUSH", KEYS[1], envelope)
end

local function lock(id)
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

-- Whether a job must wait because its twin is running. One without an id has no twin.
local function waits(id, envelope)
  if not id or id == "" or lock(id) then
    return false
  end
  put_off(id, envelope)
  return true
end

local function take(jobs)
  local ids = {}
  for _, envelope in ipairs(pop()) do
    local id = envelope_id(KEYS, ARGV, envelope)
    -- What was popped must be delivered, whatever is wrong with its lock or the sorted set.
    local ok, put_away = pcall(waits, id, envelope)
    if not (ok and put_away) then
      local stalls = has_stalls and id and redis.pcall("HGET", KEYS[7], id)
      jobs[#jobs + 1] = envelope
      jobs[#jobs + 1] = type(stalls) == "string" and stalls or "0"
      ids[#ids + 1] = id or nil
    end
  end
  if reliable and #ids > 0 then
    redis.pcall("HSET", KEYS[8], token, cmsgpack.pack(ids))
  end
  return 0
end

local function say_we_live()
  if reliable then
    redis.call("ZADD", KEYS[6], now, consumer)
  end
  return 0
end

local envelopes = outcomes(KEYS, ARGV, queue)
local codes, jobs, trouble = envelopes.settle(FIRST), {}, ""
if room > 0 then
  local attempt = envelopes.attempt
  for _, step in ipairs({attempt(envelopes.move_due, now), attempt(say_we_live), attempt(take, jobs)}) do
    if step ~= 0 then
      trouble = step
    end
  end
end
return {codes, jobs, envelopes.next_due(), trouble, redis.call("LLEN", KEYS[1])}
