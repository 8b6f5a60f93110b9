--[[
  Settles a batch of finished jobs and takes up to N new ones, in one call.

  Each step leaves what the official script would leave when Node runs it with the same arguments, in the order given: a
  finish fetches the next job while there is room, then pickups fill what room is left. A step that raises (a poisoned
  hash, a wrong type) fails alone: the others are done, and what was taken before is handed out. Upstream's scripts would
  leave such a job half moved, or hand it out for ever; here it is buried among the failed ones, with the reason. When
  the server itself refuses to write, it does so before the first write: then the whole call is refused.

  Two ways lead there. The official bodies are included and do whatever is special. Plain work goes a shorter way: a
  completed job without parent, children, deduplication, metrics or limits to keep, on a queue without pause, limit or
  rate. There the same keys are written with a third of the calls: what does not depend on the order is done once for a
  run of jobs (locks read and removed, ids popped and pushed, members added), and what does, the events above all, keeps
  its order.

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

-- --- the short way -------------------------------------------------------------------------------------------------

local call = redis.call
-- Lua hands at most some thousands of values to one call.
local RUN = 500
local DUE_AT_ONCE = 1000

-- What the queue says of itself cannot change within a script.
local meta = call("HMGET", KEYS[9], "paused", "concurrency", "max", "opts.maxLenEvents")
local plainQueue = not meta[1] and not meta[2] and not meta[3] and not holder.limiter
-- Versions before 5 kept markers among the jobs; upstream knows what to do with those.
for _, id in ipairs(plainQueue and room > 0 and call("LRANGE", KEYS[1], -room, -1) or {}) do
  if string.sub(id, 1, 2) == "0:" then
    plainQueue = false
  end
end
local maxEvents = tonumber(meta[4])
local length = 0 -- of the event stream, as far as a run knows it

local function trimEvents()
  if not maxEvents then
    maxEvents = 10000
    call("HSET", KEYS[9], "opts.maxLenEvents", maxEvents)
  end
  -- Below the limit a trim would find nothing to do.
  if length > maxEvents then
    length = length - call("XTRIM", KEYS[4], "MAXLEN", "~", maxEvents)
  end
end

local function tell(...)
  call("XADD", KEYS[4], "*", ...)
  length = length + 1
end

local moreDue = true
local trouble = "" -- why no more jobs can be taken

-- Makes delayed jobs ready whose time has come.
local function promote()
  local due = call("ZRANGEBYSCORE", KEYS[7], 0, (now + 1) * 0x1000 - 1, "LIMIT", 0, DUE_AT_ONCE)
  moreDue = #due == DUE_AT_ONCE
  if #due == 0 then
    return
  end
  call("ZREM", KEYS[7], unpack(due))
  for _, id in ipairs(due) do
    local priority = tonumber(call("HGET", base .. id, "priority")) or 0
    if priority == 0 then
      call("LPUSH", KEYS[1], id)
    else
      local turn = call("INCR", KEYS[10])
      call("ZADD", KEYS[3], priority * 0x100000000 + turn % 0x100000000, id)
    end
    tell("event", "waiting", "jobId", id, "prev", "delayed")
    call("HSET", base .. id, "delay", 0)
  end
  call("ZADD", KEYS[11], 0, "0")
end

local stock, given = {}, 0 -- ids moved to active and not yet handed out

-- Moves up to `count` ids to active, in the order in which single pickups would.
local function fetch(count)
  stock, given = {}, 0
  -- The first one by the command that a full server refuses, before anything else is written.
  local first = call("RPOPLPUSH", KEYS[1], KEYS[2])
  if first then
    stock[1] = first
    if count > 1 then
      local more = call("RPOP", KEYS[1], count - 1)
      if more and #more > 0 then
        call("LPUSH", KEYS[2], unpack(more))
        for _, id in ipairs(more) do
          stock[#stock + 1] = id
        end
      end
    end
  end
  if #stock < count then
    local ranked = call("ZPOPMIN", KEYS[3], count - #stock)
    for at = 1, #ranked, 2 do
      call("LPUSH", KEYS[2], ranked[at])
      stock[#stock + 1] = ranked[at]
    end
    if #stock < count then
      call("DEL", KEYS[10])
    end
  end
end

-- The next id, or nothing; `wanted` says how many more will be asked for before anything else may change the queue.
local function nextId(wanted)
  if moreDue then
    promote()
  end
  if given == #stock then
    fetch(moreDue and 1 or math.min(wanted, RUN))
  end
  if given < #stock then
    given = given + 1
    return stock[given]
  end
end

-- Hands a job out: locks it, says so, and gives its hash as it is afterwards.
local function handOut(id)
  local job = base .. id
  call("SET", job .. ":lock", holder.token, "PX", holder.lockDuration)
  tell("event", "active", "jobId", id, "prev", "waiting")
  local hash = call("HGETALL", job)
  local starts = 1
  for at = 1, #hash, 2 do
    if hash[at] == "ats" then
      starts = tonumber(hash[at + 1]) + 1
      break
    end
  end
  local size = #hash
  hash[size + 1], hash[size + 2] = "processedOn", now
  if holder.name then
    call("HSET", job, "processedOn", now, "pb", holder.name, "ats", starts)
    hash[size + 3], hash[size + 4] = "pb", holder.name
    size = size + 2
  else
    call("HSET", job, "processedOn", now, "ats", starts)
  end
  hash[size + 3], hash[size + 4] = "ats", tostring(starts)
  jobs[#jobs + 1] = {id, hash}
  open = #jobs < room
end

-- Hands a job out if it can be read; false when it had to be buried.
local function offer(id)
  local ok, failure = pcall(handOut, id)
  if not ok then
    bury(id, textOf(failure))
  end
  return ok
end

local function nextDelayed()
  local first = call("ZRANGE", KEYS[7], 0, 0, "WITHSCORES")
  return first[2] and tonumber(first[2]) / 0x1000
end

-- Takes one job for a finish; when there is none, the queue may be drained. `pending` finishes follow in this run.
local function takeAfterFinish(wanted, pending)
  if open then
    -- The finish is done: a next job that cannot be handed out must not undo it.
    local ok, id = pcall(nextId, wanted)
    while ok and id do
      if offer(id) then
        return
      end
      ok, id = pcall(nextId, wanted)
    end
    open = false
    if not ok then
      trouble = textOf(id)
      return
    end
    local due = nextDelayed()
    if due then
      nextAt = due
      return
    end
  end
  if call("LLEN", KEYS[1]) == 0 and call("LLEN", KEYS[2]) + pending == 0 and call("ZCARD", KEYS[3]) == 0 then
    tell("event", "drained")
  end
end

local unpacked = {}

-- Whether the options of a finish ask for nothing special.
local function plainOptions(packed)
  local known = unpacked[packed]
  if known == nil then
    local options = cmsgpack.unpack(packed)
    local keepJobs = options.keepJobs
    known = options.maxMetricsSize == "" and keepJobs.count == -1 and keepJobs.age == nil and not options.limiter
    unpacked[packed] = known
  end
  return known
end

-- The settlements from `at` on that may go the short way together: { at, id, job, atm }.
local function plainRun(at)
  local ids, locks, family, named = {}, {}, {}, {}
  while at <= #ARGV and #ids < RUN and ARGV[at + 1] == "completed" and ARGV[at + 5] == "" and plainOptions(ARGV[at + 4])
    and not named[ARGV[at]] do
    local job = base .. ARGV[at]
    named[ARGV[at]] = true
    ids[#ids + 1] = {at, ARGV[at], job}
    locks[#locks + 1] = job .. ":lock"
    family[#family + 1] = job .. ":dependencies"
    family[#family + 1] = job .. ":unsuccessful"
    at = at + 6
  end
  if #ids == 0 then
    return {}
  end
  -- Few have a family; only when somebody has one, it is looked for, and the run ends before it.
  local kin = call("EXISTS", unpack(family)) > 0
  local run = {}
  local tokens = call("MGET", unpack(locks))
  for place, entry in ipairs(ids) do
    local fields = call("HMGET", entry[3], "name", "parentKey", "parent", "deid", "atm")
    local made = tonumber(fields[5] or 0)
    if not fields[1] or fields[2] or fields[3] or fields[4] or not made or tokens[place] ~= ARGV[entry[1] + 2]
      or (kin and call("EXISTS", family[2 * place - 1], family[2 * place]) > 0) then
      break
    end
    entry[4] = made
    run[place] = entry
  end
  return run
end

-- Settles a run; every job in it exists, is locked by us and has no family.
local function settleRun(run, last)
  local locks, members, ids, left = {}, {}, {}, 0
  for place, entry in ipairs(run) do
    locks[place] = entry[3] .. ":lock"
    ids[place] = entry[2]
    entry[5] = call("LREM", KEYS[2], -1, entry[2]) > 0
    if entry[5] then
      left = left + 1
    end
  end
  call("DEL", unpack(locks))
  call("SREM", KEYS[5], unpack(ids))
  length = call("XLEN", KEYS[4])
  for _, entry in ipairs(run) do
    local id, job, value = entry[2], entry[3], ARGV[entry[1] + 3]
    if not entry[5] then
      codes[#codes + 1] = -3
    else
      left = left - 1
      trimEvents()
      call("HSET", job, "atm", entry[4] + 1, "returnvalue", value, "finishedOn", now)
      members[#members + 1] = now
      members[#members + 1] = id
      tell("event", "completed", "jobId", id, "returnvalue", value, "prev", "active")
      codes[#codes + 1] = 0
      takeAfterFinish(last and room - #jobs or math.min(room - #jobs, left + 1), left)
    end
  end
  if #members > 0 then
    call("ZADD", KEYS[12], unpack(members))
  end
end

-- --- the batch -------------------------------------------------------------------------------------------------------

local at = 5
while at <= #ARGV do
  local readable, run = pcall(plainRun, at)
  if plainQueue and readable and #run > 0 then
    at = at + 6 * #run
    local ok, failure = pcall(settleRun, run, at > #ARGV)
    while not ok and #codes < (at - 5) / 6 do
      codes[#codes + 1] = textOf(failure)
    end
  else
    local before, ours = call("LRANGE", KEYS[2], 0, 1), call("GET", base .. ARGV[at] .. ":lock") == ARGV[at + 2]
    local ok, code = pcall(settled, ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5])
    if not ok or type(code) == "table" then
      code = textOf(code)
      local refusal = refusesWrites(code)
      if refusal then
        return {err = refusal}
      end
      buryNew(before, code)
      code = ours and clearUp(ARGV[at], code) or code
    end
    codes[#codes + 1] = code
    moreDue = true
    at = at + 6
  end
end

-- Fills what room is left; `open` says whether there is any, and anything to fill it with.
local function fill()
  while open and plainQueue do
    local id = nextId(room - #jobs)
    if id then
      offer(id)
    else
      open = false
      nextAt = nextDelayed() or 0
    end
  end
  while open do
    local before = call("LRANGE", KEYS[2], 0, 1)
    local ok, reply = pcall(take, takeKeys, takeArgs)
    if ok then
      keep(reply)
    elseif not buryNew(before, textOf(reply)) then
      error(reply)
    end
  end
end
local filled, failure = pcall(fill)
if not filled then
  trouble = textOf(failure)
end
if plainQueue and #jobs > 0 then
  call("ZADD", KEYS[11], 0, "0")
end
if trouble ~= "" and #codes == 0 and #jobs == 0 then
  return {err = refusesWrites(trouble) or trouble}
end
return {codes, jobs, limited, nextAt, trouble}
