--[[
  Part of `settle.lua`: settles and fetches by the official scripts, and removes jobs that no script can read.

  Returns { settle(at) settles the job whose settlement begins at `at`, fetch() fetches jobs while there is capacity }.
]]
--@keys wait active prioritized events stalled limiter delayed paused meta pc marker
--@keys completed failed completed_metrics failed_metrics
--@args base now_ms token lock_ms worker rate_limit
--@each job_id kind token value options fields
--@official move_to_finished moveToFinished
--@official move_to_active moveToActive
--@official move_to_delayed moveToDelayed
--@official retry_job retryJob
--@official move_to_wait moveJobFromActiveToWait
--@own has_group_limits has_group_limits
--@own requeue_next requeue_next
--@own error_text error_text
--@own writes_refused writes_refused
local batch = ...
-- Delayed jobs that the official scripts move in one call.
local DUE_AT_ONCE = 1000
local NO_HASH = "the key of the job holds another type than a hash"

-- No job is fetched here while groups have limits.
if batch.open and has_group_limits(KEYS, ARGV) then
  batch.open, batch.has_limits = false, 1
end

local fetch_options = {
  token = token,
  lockDuration = tonumber(lock_ms),
  name = worker ~= "" and worker or nil,
  limiter = rate_limit ~= "" and cmsgpack.unpack(rate_limit) or nil,
}
local fetch_keys = {wait, active, prioritized, events, stalled, limiter, delayed, paused, meta, pc, marker}
local fetch_args = {base, now_ms, cmsgpack.pack(fetch_options)}

-- The options of a completed job that is kept for good and not counted in metrics.
local function plain_options(its_token)
  return cmsgpack.pack({
    token = its_token, name = fetch_options.name, lockDuration = fetch_options.lockDuration,
    limiter = fetch_options.limiter, keepJobs = {count = -1}, attempts = 0, maxMetricsSize = "",
  })
end

-- Adds the job of a fetch to the batch; closes the batch when the queue had none.
local function add_fetched(reply)
  if type(reply) ~= "table" then
    batch.open = false
    return
  end
  if reply[2] and reply[2] ~= 0 then
    local hash, jobs = reply[1], batch.jobs
    hash[#hash + 1] = reply[2]
    jobs[#jobs + 1] = hash
    batch.open = #jobs < batch.capacity
    return
  end
  batch.limited = tonumber(reply[3]) or 0
  batch.next_at = tonumber(reply[4]) or 0
  batch.open = false
end

-- Whether the official script will accept the end of a job.
local function may_finish(id, kind, its_token)
  local job = base .. id
  return (its_token == "0" or redis.call("GET", job .. ":lock") == its_token) and redis.call("LPOS", active, id)
    and (kind == "failed" or redis.call("EXISTS", job .. ":dependencies", job .. ":unsuccessful") == 0)
end

-- Adds the job that was stored to follow this one, before this one ends: a worker may fetch it in the same step.
local function add_next(id, kind, its_token)
  local deduplication_id = redis.pcall("HGET", base .. id, "deid")
  if type(deduplication_id) == "string" and redis.call("EXISTS", base .. "dn:" .. deduplication_id) == 1
    and may_finish(id, kind, its_token) then
    -- What cannot be read stays where it is; the job ends all the same.
    pcall(requeue_next, KEYS, ARGV, base, deduplication_id, now_ms)
  end
end

local function finish(id, kind, its_token, value, options, fields)
  add_next(id, kind, its_token)
  local target, metrics, property = completed, completed_metrics, "returnvalue"
  if kind == "failed" then
    target, metrics, property = failed, failed_metrics, "failedReason"
  end
  local reply = move_to_finished(
    {wait, active, prioritized, events, stalled, limiter, delayed, paused, meta, pc,
     target, base .. id, metrics, marker},
    {id, now_ms, property, value, kind, batch.open and "1" or "0", base,
     options == "" and plain_options(its_token) or options, fields})
  if type(reply) == "table" then
    add_fetched(reply)
    if reply[2] and reply[2] ~= 0 and its_token ~= token then
      redis.call("SET", base .. reply[2] .. ":lock", token, "PX", lock_ms)
    end
    return 0
  end
  if reply == 0 then
    batch.open = false
  end
  return reply
end

-- Upstream gives prioritized jobs that are given back the score of their priority, before every job that was added: the
-- scores of those are one or more above it. Jobs that are given back together keep their order by steps in between, as
-- small as numbers of that size can represent; where these are used up, by whole numbers below the first job that waits.
local function keep_order(id, place)
  local score = tonumber(redis.call("ZSCORE", prioritized, id))
  if not score then
    return
  end
  local step = 1
  while score + step / 2 ~= score do
    step = step / 2
  end
  local offset = place * step
  if offset >= 1 then
    local first = redis.call("ZRANGEBYSCORE", prioritized, score + 1, score + 0xffffffff, "WITHSCORES", "LIMIT", 0, 1)[2]
    local free = first and first - score or (tonumber(redis.call("GET", pc)) or 0) + 1
    offset = math.max(1 - step, math.min(place, free - step))
  end
  redis.call("ZINCRBY", prioritized, offset, id)
end

local function settle_one(id, kind, its_token, value, options, fields)
  local job = base .. id
  if kind == "completed" or kind == "failed" then
    return finish(id, kind, its_token, value, options, fields)
  elseif kind == "delayed" then
    return move_to_delayed({marker, active, prioritized, delayed, job, events, meta, stalled},
      {base, now_ms, id, its_token, value, options, fields})
  elseif kind == "retry" then
    return retry_job({active, wait, paused, job, meta, events, delayed, prioritized, pc, marker, stalled},
      {base, now_ms, value, id, its_token, fields})
  elseif kind == "wait" then
    local code = move_to_wait({active, wait, stalled, paused, meta, limiter, prioritized, marker, events},
      {id, its_token, job})
    if value ~= "" and code >= 0 then
      keep_order(id, tonumber(value))
    end
    return code > 0 and 0 or code
  end
  return redis.error_reply("ERR unknown settlement " .. kind)
end

-- --- jobs that no script can read ------------------------------------------------------------------------------------

local function is_in(id, lists, sets)
  for _, list in ipairs(lists) do
    if redis.call("LPOS", list, id) then
      return true
    end
  end
  for _, set in ipairs(sets) do
    if redis.call("ZSCORE", set, id) then
      return true
    end
  end
  return false
end

-- Moves a job to failed by the simplest commands. An id whose key is no hash has no job, and is only removed.
local function force_failed(id, reason)
  redis.call("LREM", active, 0, id)
  redis.call("SREM", stalled, id)
  redis.call("DEL", base .. id .. ":lock")
  if type(redis.pcall("HSET", base .. id, "failedReason", reason, "finishedOn", now_ms)) == "number" then
    redis.call("ZADD", failed, now_ms, id)
  end
  redis.call("XADD", events, "*", "event", "failed", "jobId", id, "failedReason", reason, "prev", "active")
end

-- A script raised for a job of this worker. A finish that was done before fetching the next job raised counts as done; a
-- job that has been moved elsewhere stays there; any other is moved to failed.
local function settle_raised(id, reason)
  if is_in(id, {}, {completed, failed}) then
    return 0
  elseif not is_in(id, {wait, paused}, {prioritized, delayed, base .. "waiting-children"}) then
    force_failed(id, reason)
  end
  return reason
end

-- A fetch raised: the job that it had begun to move is the first of the active list now. `before` are the two that were
-- first earlier: the first of these may be the one that was finished in the same step.
local function fail_new(before, reason)
  local first = redis.call("LINDEX", active, 0)
  if first and first ~= before[1] and first ~= before[2] then
    force_failed(first, reason)
    return true
  end
end

-- The official scripts take all due jobs out of `delayed` before they read the first: one that is no hash would make them
-- raise, and the others would be in no list. Such an id has no job, and is only removed.
local function remove_unreadable_due()
  local due = redis.call("ZRANGEBYSCORE", delayed, 0, (now_ms + 1) * 0x1000 - 1, "LIMIT", 0, DUE_AT_ONCE)
  for _, id in ipairs(due) do
    local kind = redis.call("TYPE", base .. id).ok
    if kind ~= "hash" and kind ~= "none" then
      redis.call("ZREM", delayed, id)
      redis.call("XADD", events, "*", "event", "failed", "jobId", id, "failedReason", NO_HASH, "prev", "delayed")
    end
  end
end

-- --- the two steps ---------------------------------------------------------------------------------------------------

local official = {}

-- Settles the job whose settlement begins at `at`; returns the server's message when it accepts no writes at all.
function official.settle(at)
  local id, its_token = ARGV[at + JOB_ID], ARGV[at + TOKEN]
  local before, ours = redis.call("LRANGE", active, 0, 1), redis.call("GET", base .. id .. ":lock") == its_token
  if batch.open then
    remove_unreadable_due()
  end
  local ok, code =
    pcall(settle_one, id, ARGV[at + KIND], its_token, ARGV[at + VALUE], ARGV[at + OPTIONS], ARGV[at + FIELDS])
  if not ok or type(code) == "table" then
    code = error_text(KEYS, ARGV, code)
    local refused = writes_refused(KEYS, ARGV, code)
    if refused then
      return refused
    end
    fail_new(before, code)
    code = ours and settle_raised(id, code) or code
  end
  batch.codes[#batch.codes + 1] = code
  batch.refused = batch.refused or code ~= 0
end

-- Fetches jobs while there is capacity and the queue has some.
function official.fetch()
  while batch.open do
    remove_unreadable_due()
    local before = redis.call("LRANGE", active, 0, 1)
    local ok, reply = pcall(move_to_active, fetch_keys, fetch_args)
    if ok then
      add_fetched(reply)
    elseif not fail_new(before, error_text(KEYS, ARGV, reply)) then
      error(reply)
    end
  end
end

return official
