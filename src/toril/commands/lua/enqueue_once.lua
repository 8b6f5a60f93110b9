--[[
  Adds rows of a table as jobs, each row once, however often the call or the task that sends it is repeated.

  The ledger remembers the rows of a run by a digest; a row that is in it is known and is not added again, even when its
  job has finished and was removed. A queue that is full, or a run that is faster than its limit, is told to wait.

  KEYS   1 wait (or the list or stream), 2 paused (or scheduled), 3 meta, 4 id, 5 completed, 6 delayed, 7 active, 8 events,
         9 marker, 10 prioritized, 11 pc, 12 waiting-children, 13 ledger, 14 rate of the run, 15 rejected rows
  ARGV   1 ledger's life (ms), 2 most jobs that may wait ("" for any number), 3 most jobs per second ("" for any), then
         five words for each row:
           digest, kind (standard | delayed | prioritized | parent | list | stream | reject), packed arguments (or due time
           in ms, or "" for now; or the reason of a rejection), data (or envelope, or the row), packed options
  Reply  { "full", jobs waiting } or { "fast", ms to wait } or { "done", for each row 1 new, 0 known, negative code, or
         { error text } }
]]
--@official standard addStandardJob
--@official delayed addDelayedJob
--@official prioritized addPrioritizedJob
--@official parent addParentJob
--@own plainOptions plain_options
--@own addPlainly add_plainly

local REJECTS_KEPT = 10000
local life, most, rate = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local rows = (#ARGV - 3) / 5

local function length(key)
  local kind = redis.call("TYPE", key).ok
  if kind == "list" then
    return redis.call("LLEN", key)
  elseif kind == "zset" then
    return redis.call("ZCARD", key)
  elseif kind == "stream" then
    return redis.call("XLEN", key)
  end
  return 0
end

if most then
  local waiting = length(KEYS[1]) + length(KEYS[2]) + (KEYS[10] ~= KEYS[1] and length(KEYS[10]) or 0)
  if waiting >= most then
    return {"full", waiting}
  end
end

if rate then
  local time = redis.call("TIME")
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local due = math.max(tonumber(redis.call("GET", KEYS[14]) or "0"), now)
  -- A second of work may be ahead: calls carry many rows, and a strict clock would starve between them.
  if due > now + 1000 then
    return {"fast", math.ceil(due - now - 1000)}
  end
  local following = due + rows * 1000 / rate
  redis.call("SET", KEYS[14], string.format("%.3f", following), "PX", math.ceil(following - now) + 60000)
end

local function to_list(keys, args)
  if args[1] ~= "" then
    redis.call("ZADD", keys[2], args[1], args[2])
  else
    redis.call("LPUSH", keys[1], args[2])
  end
  return 1
end

local function to_stream(keys, args)
  if args[1] ~= "" then
    redis.call("ZADD", keys[2], args[1], args[2])
  else
    redis.call("XADD", keys[1], "*", "envelope", args[2])
  end
  return 1
end

local function reject(keys, args)
  redis.call("XADD", keys[1], "MAXLEN", "~", REJECTS_KEPT, "*", "reason", args[1], "row", args[2])
  return 1
end

local bodies = {
  standard = {standard, {KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]}},
  delayed = {delayed, {KEYS[9], KEYS[3], KEYS[4], KEYS[6], KEYS[5], KEYS[8]}},
  prioritized = {prioritized, {KEYS[9], KEYS[3], KEYS[4], KEYS[10], KEYS[6], KEYS[5], KEYS[7], KEYS[8], KEYS[11]}},
  parent = {parent, {KEYS[3], KEYS[4], KEYS[6], KEYS[12], KEYS[5], KEYS[8]}},
  list = {to_list, {KEYS[1], KEYS[2]}},
  stream = {to_stream, {KEYS[1], KEYS[2]}},
  reject = {reject, {KEYS[15]}},
}

-- Rows that the ledger knows; those of this call are added as they come, for a row may come twice in it.
local RUN = 1000 -- Lua hands at most some thousands of values to one call
local known = {}
for from = 1, rows, RUN do
  local digests = {}
  for row = from, math.min(from + RUN - 1, rows) do
    digests[#digests + 1] = ARGV[5 * row - 1]
  end
  for place, found in ipairs(redis.call("SMISMEMBER", KEYS[13], unpack(digests))) do
    known[digests[place]] = found == 1
  end
end

local encoded = {} -- packed options → what the short way needs of them

-- The row as a job that may go the short way, if it is one: { id, arguments, data, options }.
local function plainJob(row)
  local at = 5 * row - 1
  if ARGV[at + 1] ~= "standard" then
    return nil
  end
  local options, words = plainOptions(KEYS, ARGV, encoded, ARGV[at + 4]), cmsgpack.unpack(ARGV[at + 2])
  if options and not words[5] and not words[8] and not words[9] then
    return {words[2], words, ARGV[at + 3], options}
  end
end

local replies = {}

local function settled(row, ok, reply)
  if ok and (type(reply) ~= "number" or reply >= 0) then
    replies[row] = 1
  else
    redis.call("SREM", KEYS[13], ARGV[5 * row - 1])
    replies[row] = ok and reply or {type(reply) == "table" and reply.err or tostring(reply)}
  end
end

local function addOne(row)
  local at = 5 * row - 1
  local body = bodies[ARGV[at + 1]]
  redis.call("SADD", KEYS[13], ARGV[at])
  settled(row, pcall(body[1], body[2], {ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]}))
end

local function addRun(run, places)
  local digests, ids = {}, {}
  for _, row in ipairs(places) do
    digests[#digests + 1] = ARGV[5 * row - 1]
  end
  redis.call("SADD", KEYS[13], unpack(digests))
  local ok, reply = pcall(addPlainly, KEYS, ARGV, run, ids)
  for place, row in ipairs(places) do
    settled(row, ok or ids[place] ~= nil, ids[place] or reply)
  end
end

local row = 1
while row <= rows do
  local run, places = {}, {}
  local fine, job = true, nil
  while row <= rows and #run < RUN do
    local digest = ARGV[5 * row - 1]
    if known[digest] then
      replies[row] = 0
    else
      fine, job = pcall(plainJob, row)
      if not fine or not job then
        break
      end
      known[digest] = true
      run[#run + 1], places[#places + 1] = job, row
    end
    row = row + 1
  end
  if #run > 0 then
    addRun(run, places)
  end
  if row <= rows and #run < RUN then
    known[ARGV[5 * row - 1]] = true
    addOne(row)
    row = row + 1
  end
end
redis.call("PEXPIRE", KEYS[13], life)
return {"done", replies}
