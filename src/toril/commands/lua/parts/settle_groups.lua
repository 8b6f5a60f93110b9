--[[
  Runs `settle` on a queue whose groups have limits: settles all jobs by it, frees the slots of those that ended, and
  fetches here, job by job, because each one depends on the state of its group.

  The rules of a fetch are those of the official moveToActive: delayed jobs that are due first return to the queue; a
  pause, the concurrency and the rate of the queue hold for all jobs; `wait` comes before the prioritized jobs. A job of a
  closed group is held (`parts/group_limits.lua`), and the next one is looked at.

  ...    the script `settle`
  Reply  that of `settle`, and 1 when the queue has limits, 2 when more jobs can be looked at at once
]]
--@keys wait active prioritized events limiter delayed paused meta pc marker
--@args base now_ms capacity token lock_ms worker rate_limit
--@each job_id kind
--@own has_group_limits has_group_limits
--@own group_limits group_limits
--@own group_in group_in
--@own error_text error_text
--@own writes_refused writes_refused
local settle = ...
local DUE_AT_ONCE = 1000
-- Jobs that one call looks at, held ones included: some milliseconds of the server's time.
local EXAMINED_AT_ONCE = 1000

local call, try = redis.call, redis.pcall
if not has_group_limits(KEYS, ARGV) then
  local reply = settle(KEYS, ARGV)
  reply[6] = 0
  return reply
end

-- --- settling --------------------------------------------------------------------------------------------------------

local ids, kinds = {}, {}
for at = FIRST_ITEM, #ARGV, ITEM_SIZE do
  ids[#ids + 1], kinds[#kinds + 1] = ARGV[at + JOB_ID], ARGV[at + KIND]
end
local slots = #ids > 0 and call("HMGET", base .. "toril:group-slots", unpack(ids)) or {}
ARGV.settles_only = true
local reply = settle(KEYS, ARGV)
if reply.err then
  return reply
end

local groups = group_limits(KEYS, ARGV)
local codes, wanted = reply[1], tonumber(capacity)
for place, id in ipairs(ids) do
  local name, is_accepted = slots[place], codes == 0 or codes[place] == 0
  if name and is_accepted then
    local is_over = kinds[place] == "completed" or kinds[place] == "failed"
    groups.settled(name, id, is_over)
  end
end
groups.reopen(wanted)

-- --- fetching --------------------------------------------------------------------------------------------------------

local settings = call("HMGET", meta, "paused", "concurrency", "max", "duration")
local limit = rate_limit ~= "" and cmsgpack.unpack(rate_limit) or {}
local max_starts = tonumber(settings[3] or limit["max"])
local period = math.floor(math.abs(limit["duration"] or settings[4] or 0))

-- How many jobs the pause, the concurrency and the rate of the queue allow, and for how long the rate allows none (ms).
local function allowed()
  if max_starts then
    local left, ttl = max_starts - (tonumber(call("GET", limiter)) or 0), call("PTTL", limiter)
    if left <= 0 and ttl > 0 then
      return 0, ttl
    end
    wanted = math.min(wanted, left > 0 and left or max_starts)
  end
  if settings[1] then
    return 0, 0
  elseif settings[2] then
    return math.min(wanted, math.max(0, settings[2] - call("LLEN", active))), 0
  end
  return wanted, 0
end

local function promote_due()
  local due = call("ZRANGEBYSCORE", delayed, 0, (now_ms + 1) * 0x1000 - 1, "LIMIT", 0, DUE_AT_ONCE)
  for _, id in ipairs(due) do
    local priority = tonumber(try("HGET", base .. id, "priority")) or 0
    if priority == 0 then
      call("LPUSH", settings[1] and paused or wait, id)
    else
      call("ZADD", prioritized, priority * 0x100000000 + call("INCR", pc) % 0x100000000, id)
    end
    call("ZREM", delayed, id)
    call("XADD", events, "*", "event", "waiting", "jobId", id, "prev", "delayed")
    try("HSET", base .. id, "delay", 0)
  end
  if #due > 0 and not settings[1] then
    call("ZADD", marker, 0, "0")
  end
end

-- The next jobs in their order, at most `most`: { id, score if it is prioritized }. Markers of BullMQ before version 5, which
-- stood in wait, are removed.
local function next_jobs(most)
  local found, listed = {}, call("LRANGE", wait, -most, -1)
  for at = #listed, 1, -1 do
    if string.sub(listed[at], 1, 2) == "0:" then
      call("LREM", wait, -1, listed[at])
    else
      found[#found + 1] = {listed[at]}
    end
  end
  local scored = #listed < most and call("ZRANGE", prioritized, 0, most - #listed - 1, "WITHSCORES") or {}
  for at = 1, #scored, 2 do
    found[#found + 1] = {scored[at], scored[at + 1]}
  end
  return found
end

local chosen = {} -- jobs that are to begin: { id, score, fields, state of its group }

local function leave_queue()
  local ids, scored = {}, {}
  for place, one in ipairs(chosen) do
    ids[place] = one[1]
    if one[2] then
      scored[#scored + 1] = one[1]
    end
  end
  -- The first write is one that a server without memory refuses, before anything is changed.
  call("LPUSH", active, unpack(ids))
  if #scored > 0 then
    call("ZREM", prioritized, unpack(scored))
  end
  if #ids > #scored then
    call("LTRIM", wait, 0, -1 - (#ids - #scored))
  end
end

-- Makes a job active, as the official script does; returns its fields and its id. A key that is no hash has no job.
local function begin(id, starts)
  local job = base .. id
  local values = {"processedOn", now_ms, "ats", string.format("%.0f", (tonumber(starts) or 0) + 1)}
  if worker ~= "" then
    values[5], values[6] = "pb", worker
  end
  local written = try("HSET", job, unpack(values))
  if type(written) == "table" then
    call("LREM", active, 1, id)
    call("XADD", events, "*", "event", "failed", "jobId", id, "failedReason", written.err, "prev", "active")
    return
  end
  call("SET", job .. ":lock", token, "PX", lock_ms)
  call("XADD", events, "*", "event", "active", "jobId", id, "prev", "waiting")
  local hash = call("HGETALL", job)
  hash[#hash + 1] = id
  return hash
end

local jobs, has_more = reply[2], false
local function begin_chosen()
  if #chosen == 0 then
    return
  end
  leave_queue()
  for _, one in ipairs(chosen) do
    local hash = begin(one[1], one[3])
    if hash then
      jobs[#jobs + 1] = hash
      if max_starts and call("INCR", limiter) == 1 then
        call("PEXPIRE", limiter, period)
      end
    end
    if one[4] then
      groups.begun(one[4], one[1], hash ~= nil)
    end
  end
  chosen = {}
end

-- Chooses or holds a job; returns whether the order may have changed by jobs that were released.
local function look_at(id, score, most)
  local fields = try("HMGET", base .. id, "opts", "ats")
  local name = not fields.err and group_in(KEYS, ARGV, fields[1])
  local state = name and groups.state_of(name, most - #jobs - #chosen)
  if state and state.has_released then
    state.has_released = false
    return true
  end
  if not state or groups.may_begin(state, id) then
    chosen[#chosen + 1] = {id, score, fields[2], state}
    if state then
      groups.choose(state)
    end
  else
    groups.hold(state, id, score)
  end
  return false
end

local function fetch()
  promote_due()
  local most, limited = allowed()
  reply[3] = limited
  local examined, is_over = 0, most == 0
  while not is_over do
    begin_chosen()
    local found = next_jobs(most - #jobs)
    is_over = #found == 0
    for _, one in ipairs(found) do
      examined = examined + 1
      local has_changed = look_at(one[1], one[2], most)
      if has_changed or #jobs + #chosen == most then
        break
      end
    end
    is_over = is_over or #jobs + #chosen == most
    if not is_over and examined >= EXAMINED_AT_ONCE then
      is_over, has_more = true, true
    end
  end
  begin_chosen()
end

if wanted > 0 then
  local ok, failure = pcall(fetch)
  if not ok then
    local text = error_text(KEYS, ARGV, failure)
    if #ids == 0 and #jobs == 0 then
      return {err = writes_refused(KEYS, ARGV, text) or text}
    end
    reply[5] = text
  end
end
-- A server without memory refuses it, unless something was written before: the stalled sweep does it then.
pcall(groups.finish)
if #jobs > 0 or has_more then
  call("ZADD", marker, 0, "0")
end
if #jobs < wanted then
  local soonest = call("ZRANGE", delayed, 0, 0, "WITHSCORES")[2]
  reply[4] = soonest and tonumber(soonest) / 0x1000 or 0
end
reply[6] = has_more and 2 or 1
return reply
