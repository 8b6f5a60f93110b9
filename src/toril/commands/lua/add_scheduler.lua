--[[
  Creates or changes a scheduler and its next job by the official script, and as BullMQ 5.62.0 does where that script is
  newer.

  A scheduler that is set again with its own pattern keeps its next run: it may be later than the next time of the
  pattern, when a run was promoted before its time and has ended. The official script would return to that time, and
  replace a job that exists.

  An interval with an offset begins, as in BullMQ 6, that much after the next multiple of the interval.

  next_ms  "" when the script computes it
  The other keys and arguments, and the reply, are those of addJobScheduler.
]]
--@keys repeat_set delayed wait paused meta prioritized marker id_counter events pc active
--@args next_ms scheduler_options scheduler_id data template_options job_options now_ms base producer_id
--@official upsert addJobScheduler
local NEXT_MS, SCHEDULER_OPTIONS = 1, 2 -- the places of these in ARGV

local function can_be_replaced(job_id)
  if redis.call("ZSCORE", delayed, job_id) or redis.call("ZSCORE", prioritized, job_id) then
    return true
  end
  local waiting = redis.call("HEXISTS", meta, "paused") == 1 and paused or wait
  return redis.call("LPOS", waiting, job_id) ~= false
end

local options = cmsgpack.unpack(scheduler_options)
local next_run = redis.call("ZSCORE", repeat_set, scheduler_id)
if next_run and options["pattern"] then
  local hash = repeat_set .. ":" .. scheduler_id
  local before = redis.call("HMGET", hash, "pattern", "tz")
  local same = before[1] == options["pattern"] and (before[2] or "") == (options["tz"] or "")
  local run_ms = string.format("%.0f", tonumber(next_run))
  local exists = same and redis.call("EXISTS", hash .. ":" .. run_ms) == 1
  if exists and can_be_replaced("repeat:" .. scheduler_id .. ":" .. run_ms) then
    ARGV[NEXT_MS] = run_ms
  end
end
if options["every"] and options["offset"] and not next_run and not options["startDate"] then
  local every, now = tonumber(options["every"]), tonumber(now_ms)
  local first = math.floor(now / every) * every + options["offset"]
  options["startDate"] = first > now and first or first + every -- only for the script: it is not stored
  ARGV[SCHEDULER_OPTIONS] = cmsgpack.pack(options)
  local reply = upsert(KEYS, ARGV)
  redis.call("HDEL", repeat_set .. ":" .. scheduler_id, "startDate")
  return reply
end
return upsert(KEYS, ARGV)
