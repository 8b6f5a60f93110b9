--[[
  Settles a batch of list jobs and fetches up to `capacity` new ones, in one call.

  At most once: a job leaves the list when it is fetched, and its lock holds the token of its worker. An outcome is
  refused when another worker has the lock. With reliable pickup a fetched job is in the worker's processing list until
  it is settled, and an outcome counts only while it is there. Jobs of a reliable pickup that have not begun are recorded
  until the worker confirms them: a delivery that was lost before its handler began costs no attempt.

  The lock of a settled job keeps a note with its token for a while: an outcome that is sent twice is recognised. Such a
  note locks nothing.

  processing   this worker's processing list
  stalls       number of stalls by job id
  unbegun      this worker's jobs that have not begun, by the token of their pickup
  consumer     for reliable pickup, or ""
  kind … text  one settlement (`parts/envelope_outcomes.lua`): the reference is the envelope as it was fetched, the fence
               the token under which it was fetched
  Reply        { codes, jobs, due (ms) of the next scheduled job or -1, error of the fetch or "", jobs left in the list }
                 jobs: envelope, stalls, ... flat
]]
--@keys jobs scheduled dlq totals processing consumers stalls unbegun
--@args lock_base now_ms capacity token lock_ms consumer result_base
--@each kind job_id reference fence due_ms text
--@own outcomes envelope_outcomes
--@own envelope_id envelope_id
local max_jobs = tonumber(capacity)
local reliable = consumer ~= ""
-- As long as a worker may need to reconnect and send an outcome again.
local NOTE_MS = 60000
local NOTE = "settled:"
-- A job is postponed by at most this time while a job with the same id is running.
local SAME_ID_MS = 5000

local has_stalls = redis.call("EXISTS", stalls) == 1
local queue = {}

function queue.check_owner(id, envelope, its_token)
  local owner = redis.call("GET", lock_base .. id)
  if owner == NOTE .. its_token then
    return 1
  elseif owner and owner ~= its_token and string.sub(owner, 1, #NOTE) ~= NOTE then
    return -6
  elseif reliable and not redis.call("LPOS", processing, envelope) then
    return -2
  end
  return 0
end

function queue.release(kind, id, envelope, its_token)
  if reliable then
    redis.call("LREM", processing, 1, envelope)
  end
  if has_stalls then
    redis.call("HDEL", stalls, id)
  end
  if kind ~= "done" then
    redis.call("SET", lock_base .. id, NOTE .. its_token, "PX", NOTE_MS)
  elseif redis.call("GET", lock_base .. id) == its_token then
    redis.call("DEL", lock_base .. id)
  end
end

function queue.add(envelope)
  redis.call("LPUSH", jobs, envelope)
end

function queue.give_back(envelope)
  redis.call("RPUSH", jobs, envelope)
end

local function lock(id)
  if redis.call("SET", lock_base .. id, token, "NX", "PX", lock_ms) then
    return true
  end
  if string.sub(redis.call("GET", lock_base .. id) or NOTE, 1, #NOTE) == NOTE then
    redis.call("SET", lock_base .. id, token, "PX", lock_ms)
    return true
  end
  return false
end

local function pop()
  if not reliable then
    return redis.call("RPOP", jobs, max_jobs) or {}
  end
  local popped = {}
  while #popped < max_jobs do
    local envelope = redis.call("LMOVE", jobs, processing, "RIGHT", "LEFT")
    if not envelope then
      break
    end
    popped[#popped + 1] = envelope
  end
  return popped
end

local function postpone(id, envelope)
  local rest = redis.call("PTTL", lock_base .. id)
  redis.call("ZADD", scheduled, now_ms + math.min(math.max(rest, 100), SAME_ID_MS), envelope)
  if reliable then
    redis.call("LREM", processing, 1, envelope)
  end
end

-- Locks a job, or postpones it because a job with the same id is running; returns whether it was postponed.
local function lock_or_postpone(id, envelope)
  if not id or id == "" or lock(id) then
    return false
  end
  postpone(id, envelope)
  return true
end

local function fetch(fetched)
  local ids = {}
  for _, envelope in ipairs(pop()) do
    local id = envelope_id(KEYS, ARGV, envelope)
    -- What was popped must be delivered, whatever is wrong with its lock or the sorted set.
    local ok, postponed = pcall(lock_or_postpone, id, envelope)
    if not (ok and postponed) then
      local count = has_stalls and id and redis.pcall("HGET", stalls, id)
      fetched[#fetched + 1] = envelope
      fetched[#fetched + 1] = type(count) == "string" and count or "0"
      ids[#ids + 1] = id or nil
    end
  end
  if reliable and #ids > 0 then
    redis.pcall("HSET", unbegun, token, cmsgpack.pack(ids))
  end
  return 0
end

local function renew_consumer()
  if reliable then
    redis.call("ZADD", consumers, now_ms, consumer)
  end
  return 0
end

local envelopes = outcomes(KEYS, ARGV, queue)
local codes, fetched, fetch_error = envelopes.settle(), {}, ""
if max_jobs > 0 then
  local attempt = envelopes.attempt
  for _, reply in ipairs({attempt(envelopes.move_due, now_ms), attempt(renew_consumer), attempt(fetch, fetched)}) do
    if reply ~= 0 then
      fetch_error = reply
    end
  end
end
return {codes, fetched, envelopes.next_due(), fetch_error, redis.call("LLEN", jobs)}
