--[[
  Part of `settle.lua`: what goes through the official bodies, and what is done with jobs that no script can read.

  Gives { settle = settles the job whose words begin at a place, fill = takes jobs while there is room }.
]]
local batch = ...
--@official finish moveToFinished
--@official take moveToActive
--@official postpone moveToDelayed
--@official again retryJob
--@official giveBack moveJobFromActiveToWait

local special = {}
local base, now, token = ARGV[1], ARGV[2], ARGV[4]
local terms = {
  token = token,
  lockDuration = tonumber(ARGV[5]),
  name = ARGV[6] ~= "" and ARGV[6] or nil,
  limiter = ARGV[7] ~= "" and cmsgpack.unpack(ARGV[7]) or nil,
}
local takeKeys = {KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]}
local takeArgs = {base, now, cmsgpack.pack(terms)}

-- The options of a completed job that asks for nothing special.
local function plainOptions(own)
  return cmsgpack.pack({
    token = own, name = terms.name, lockDuration = terms.lockDuration, limiter = terms.limiter,
    keepJobs = {count = -1}, attempts = 0, maxMetricsSize = "",
  })
end

-- Keeps what a pickup brought, and closes the gate when the queue had nothing to give.
local function keep(reply)
  if type(reply) ~= "table" then
    batch.open = false
    return
  end
  if reply[2] and reply[2] ~= 0 then
    local hash, jobs = reply[1], batch.jobs
    hash[#hash + 1] = reply[2]
    jobs[#jobs + 1] = hash
    batch.open = #jobs < batch.room
    return
  end
  batch.limited = tonumber(reply[3]) or 0
  batch.nextAt = tonumber(reply[4]) or 0
  batch.open = false
end

local function finished(id, kind, own, value, options, fields)
  local target, metrics, property = KEYS[12], KEYS[14], "returnvalue"
  if kind == "failed" then
    target, metrics, property = KEYS[13], KEYS[15], "failedReason"
  end
  local reply = finish(
    {KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10],
     target, base .. id, metrics, KEYS[11]},
    {id, now, property, value, kind, batch.open and "1" or "0", base, options == "" and plainOptions(own) or options, fields})
  if type(reply) == "table" then
    keep(reply)
    if reply[2] and reply[2] ~= 0 and own ~= token then
      redis.call("SET", base .. reply[2] .. ":lock", token, "PX", ARGV[5])
    end
    return 0
  end
  if reply == 0 then
    batch.open = false
  end
  return reply
end

-- Upstream gives prioritized jobs that go back the score of their priority, in front of every job that was added: the
-- scores of those are one or more above it. Jobs that go back together keep their order by steps in between, as small as
-- numbers of that size can tell apart; where these are used up, by whole numbers below the first job that waits.
local function putInOrder(id, rank)
  local score = tonumber(redis.call("ZSCORE", KEYS[3], id))
  if not score then
    return
  end
  local step = 1
  while score + step / 2 ~= score do
    step = step / 2
  end
  local offset = rank * step
  if offset >= 1 then
    local first = redis.call("ZRANGEBYSCORE", KEYS[3], score + 1, score + 0xffffffff, "WITHSCORES", "LIMIT", 0, 1)[2]
    local free = first and first - score or (tonumber(redis.call("GET", KEYS[10])) or 0) + 1
    offset = math.max(1 - step, math.min(rank, free - step))
  end
  redis.call("ZINCRBY", KEYS[3], offset, id)
end

local function settled(id, kind, own, value, options, fields)
  if kind == "completed" or kind == "failed" then
    return finished(id, kind, own, value, options, fields)
  elseif kind == "delayed" then
    return postpone({KEYS[11], KEYS[2], KEYS[3], KEYS[7], base .. id, KEYS[4], KEYS[9], KEYS[5]},
      {base, now, id, own, value, options, fields})
  elseif kind == "retry" then
    return again({KEYS[2], KEYS[1], KEYS[8], base .. id, KEYS[9], KEYS[4], KEYS[7], KEYS[3], KEYS[10], KEYS[11], KEYS[5]},
      {base, now, value, id, own, fields})
  elseif kind == "wait" then
    local code = giveBack({KEYS[2], KEYS[1], KEYS[5], KEYS[8], KEYS[9], KEYS[6], KEYS[3], KEYS[11], KEYS[4]},
      {id, own, base .. id})
    if value ~= "" and code >= 0 then
      putInOrder(id, tonumber(value))
    end
    return code > 0 and 0 or code
  end
  return redis.error_reply("ERR unknown settlement " .. kind)
end

-- --- jobs that no script can read ------------------------------------------------------------------------------------

local function isIn(id, lists, sets)
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

-- Puts a job where it ends: among the failed, by the plainest means. What is no hash is no job, and leaves the queue.
local function bury(id, why)
  redis.call("LREM", KEYS[2], 0, id)
  redis.call("SREM", KEYS[5], id)
  redis.call("DEL", base .. id .. ":lock")
  if type(redis.pcall("HSET", base .. id, "failedReason", why, "finishedOn", now)) == "number" then
    redis.call("ZADD", KEYS[13], now, id)
  end
  redis.call("XADD", KEYS[4], "*", "event", "failed", "jobId", id, "failedReason", why, "prev", "active")
end

-- A step raised for a job that was ours. A finish that was done before the next job made it raise counts as done; a job
-- that has left us for another place is safe there; any other is buried.
local function clearUp(id, why)
  if isIn(id, {}, {KEYS[12], KEYS[13]}) then
    return 0
  elseif not isIn(id, {KEYS[1], KEYS[8]}, {KEYS[3], KEYS[7], base .. "waiting-children"}) then
    bury(id, why)
  end
  return why
end

-- A pickup raised: the job that it had begun to move leads the active ones now. `before` are the two that led them
-- earlier: the first of these may be the one that was finished in the same step.
local function buryNew(before, why)
  local first = redis.call("LINDEX", KEYS[2], 0)
  if first and first ~= before[1] and first ~= before[2] then
    bury(first, why)
    return true
  end
end

-- --- the two steps ---------------------------------------------------------------------------------------------------

-- Settles the job whose words begin at `at`; the text of a refusal when the server takes no writes at all.
function special.settle(at)
  local id, own = ARGV[at], ARGV[at + 2]
  local before, ours = redis.call("LRANGE", KEYS[2], 0, 1), redis.call("GET", base .. id .. ":lock") == own
  local ok, code = pcall(settled, id, ARGV[at + 1], own, ARGV[at + 3], ARGV[at + 4], ARGV[at + 5])
  if not ok or type(code) == "table" then
    code = batch.textOf(code)
    local refusal = batch.refusesWrites(code)
    if refusal then
      return refusal
    end
    buryNew(before, code)
    code = ours and clearUp(id, code) or code
  end
  batch.codes[#batch.codes + 1] = code
  batch.refused = batch.refused or code ~= 0
end

-- Takes jobs while there is room and the queue has some.
function special.fill()
  while batch.open do
    local before = redis.call("LRANGE", KEYS[2], 0, 1)
    local ok, reply = pcall(take, takeKeys, takeArgs)
    if ok then
      keep(reply)
    elseif not buryNew(before, batch.textOf(reply)) then
      error(reply)
    end
  end
end

return special
