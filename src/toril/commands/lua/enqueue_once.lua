--[[
  Adds rows of a table as jobs, each row once, however often the call or the task that sends it is repeated.

  The ledger remembers the rows of a run by a digest; a row that is in it is known and is not added again, even when its
  job has finished and was removed. A queue that is full, or a run that is faster than its limit, is told to wait.

  The ledger is a hash:
    how           how the rows of the run are known; rows that are known in another way cannot be compared with them
    saves         how many saves there were; save:<id> is the number of one of them
    <digest>      "" for a row that is known by itself (its id, its key, or its content counted over all tasks), or a list
                  ";<partition>.<save>" for a row that is known by its content within a task: equal rows of different
                  partitions share a digest

  A row that is known within its partition and was entered by an earlier save under another partition only would be added
  again: then nothing is added, and the row is named.

  KEYS   1 wait (or the list or stream), 2 paused (or scheduled), 3 meta, 4 id, 5 completed, 6 delayed, 7 active, 8 events,
         9 marker, 10 prioritized, 11 pc, 12 waiting-children, 13 ledger, 14 rate of the run, 15 rejected rows
  ARGV   1 ledger's life (ms), 2 most jobs that may wait ("" for any number), 3 most jobs per second ("" for any), 4 how
         rows are known, 5 id of the save, 6 partition of the task, 7 group of a stream or "", then six words for each row:
           digest, "-" for a row known by itself, or the digest of the first of its equals in this task ("": it is the
           first), kind (standard | delayed | prioritized | parent | list | stream | reject), packed arguments (or due
           time in ms, or "" for now; or the reason of a rejection), data (or envelope, or the row), packed options
  Reply  { "full", jobs waiting } or { "fast", ms to wait } or { "how", how the run knows its rows } or
         { "moved", partition that entered a row before } or { "done", for each row 1 new, 0 known, negative code, or
         { error text }; fewer than rows where the queue became full }
]]
--@official standard addStandardJob
--@official delayed addDelayedJob
--@official prioritized addPrioritizedJob
--@official parent addParentJob
--@own plainOptions plain_options
--@own addPlainly add_many
--@own named_fields named_fields

local REJECTS_KEPT = 10000
local RUN = 1000 -- Lua hands at most some thousands of values to one call
local FIRST, WORDS = 8, 6 -- where the rows begin, and how many words each has
local life, most, rate = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local how, save, partition, group = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local ledger = KEYS[13]
local rows = (#ARGV - FIRST + 1) / WORDS

local function word(row, number)
  return ARGV[FIRST + WORDS * (row - 1) + number]
end

-- --- what the ledger says ---------------------------------------------------------------------------------------------

local before = redis.call("HGET", ledger, "how")
if before and before ~= how then
  return {"how", before}
end

local digests, firsts = {}, {} -- of each row; a row that is known by itself has no first
local names = {}
for row = 1, rows do
  local digest, first = word(row, 0), word(row, 1)
  digests[row], names[#names + 1] = digest, digest
  if first == "" then
    firsts[row] = digest
  elseif first ~= "-" then
    firsts[row], names[#names + 1] = first, first
  end
end

local entries = {} -- digest → its entry, false when there is none
for from = 1, #names, RUN do
  local to = math.min(from + RUN - 1, #names)
  for place, entry in ipairs(redis.call("HMGET", ledger, unpack(names, from, to))) do
    entries[names[from + place - 1]] = entry
  end
end

local here = ";" .. partition .. "."
local function is_known(row)
  local entry = entries[digests[row]]
  return entry and (not firsts[row] or string.find(entry, here, 1, true) ~= nil)
end

local own = redis.call("HGET", ledger, "save:" .. save) or nil

-- The partition under which an earlier save entered the content of a row; nil when there is no other.
local function other_partition(row)
  local entry = firsts[row] and entries[firsts[row]]
  for where, by in string.gmatch(entry or "", ";(%d+)%.(%d+)") do
    if where ~= partition and by ~= own then
      return where
    end
  end
end

local fresh = {} -- rows that were unknown when the call began
for row = 1, rows do
  if not is_known(row) then
    local other = other_partition(row)
    if other then
      return {"moved", other}
    end
    fresh[row] = true
  end
end

-- --- how many rows may come in ----------------------------------------------------------------------------------------

local function undelivered(after, limit)
  local count, page = 0, nil
  repeat
    page = redis.call("XRANGE", KEYS[1], "(" .. after, "+", "COUNT", 500)
    count = count + #page
    if #page > 0 then
      after = page[#page][1]
    end
  until #page == 0 or count >= limit
  return count
end

-- Jobs that a worker could take now: those that are delayed, in hand or done do not count.
local function waiting()
  if KEYS[10] ~= KEYS[1] then
    return redis.call("LLEN", KEYS[1]) + redis.call("LLEN", KEYS[2]) + redis.call("ZCARD", KEYS[10])
  elseif group == "" then
    return redis.call("LLEN", KEYS[1])
  end
  local groups = redis.pcall("XINFO", "GROUPS", KEYS[1])
  for _, flat in ipairs(groups.err and {} or groups) do
    local info = named_fields(KEYS, ARGV, flat)
    if info["name"] == group then
      return info["lag"] or undelivered(info["last-delivered-id"], most)
    end
  end
  return redis.call("XLEN", KEYS[1])
end

local WAITS = {standard = true, prioritized = true, list = true, stream = true}
local function will_wait(row)
  local kind = word(row, 2)
  return WAITS[kind] and (kind == "standard" or kind == "prioritized" or word(row, 3) == "")
end

-- The last row for which there is room, and how many up to it are new.
local function admitted(room)
  local new, seen = 0, {}
  for row = 1, rows do
    local digest = digests[row]
    if fresh[row] and not seen[digest] then
      if will_wait(row) then
        room = room - 1
        if room < 0 then
          return row - 1, new
        end
      end
      seen[digest] = true
      new = new + 1
    end
  end
  return rows, new
end

local there = most and waiting() or 0
local last, new = admitted(most and most - there or math.huge)
if last == 0 then
  return {"full", there}
end

if rate and new > 0 then
  local time = redis.call("TIME")
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local due = math.max(tonumber(redis.call("GET", KEYS[14]) or "0"), now)
  -- A second of work may be ahead: calls carry many rows, and a strict clock would starve between them.
  if due > now + 1000 then
    return {"fast", math.ceil(due - now - 1000)}
  end
  local following = due + new * 1000 / rate
  redis.call("SET", KEYS[14], string.format("%.3f", following), "PX", math.ceil(following - now) + 60000)
end

-- --- adding -----------------------------------------------------------------------------------------------------------

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

local encoded = {} -- packed options → what the short way needs of them

-- The row as a job that may go the short way, if it is one: { id, arguments, data, options }.
local function plainJob(row)
  if word(row, 2) ~= "standard" then
    return nil
  end
  local options, words = plainOptions(KEYS, ARGV, encoded, word(row, 5)), cmsgpack.unpack(word(row, 3))
  if options and not words[5] and not words[8] and not words[9] then
    return {words[2], words, word(row, 4), options}
  end
end

local replies = {}

-- The number of this save, made when the first row is entered that needs it.
local function save_number()
  if not own then
    own = tostring(redis.call("HINCRBY", ledger, "saves", 1))
    redis.call("HSET", ledger, "save:" .. save, own)
  end
  return own
end

-- The entry of a row with this task in it, noted here; the server is told by the caller.
local function entered(row)
  local digest = digests[row]
  local entry = firsts[row] and (entries[digest] or "") .. here .. save_number() or ""
  entries[digest] = entry
  return entry
end

-- A row that the server refused is not known: another attempt may succeed.
local function withdraw(row)
  local digest = digests[row]
  local left = firsts[row] and string.gsub(entries[digest], ";" .. partition .. "%.%d+$", "") or ""
  if left == "" then
    entries[digest] = false
    redis.call("HDEL", ledger, digest)
  else
    entries[digest] = left
    redis.call("HSET", ledger, digest, left)
  end
end

local function settled(row, ok, reply)
  if ok and (type(reply) ~= "number" or reply >= 0) then
    replies[row] = 1
  else
    withdraw(row)
    replies[row] = ok and reply or {type(reply) == "table" and reply.err or tostring(reply)}
  end
end

local function addOne(row)
  local body = bodies[word(row, 2)]
  redis.call("HSET", ledger, digests[row], entered(row))
  settled(row, pcall(body[1], body[2], {word(row, 3), word(row, 4), word(row, 5)}))
end

local function addRun(run, places, pairs_of_run)
  local ids = {}
  redis.call("HSET", ledger, unpack(pairs_of_run))
  local ok, reply = pcall(addPlainly, KEYS, ARGV, run, ids)
  for place, row in ipairs(places) do
    settled(row, ok or ids[place] ~= nil, ids[place] or reply)
  end
end

if not before and new > 0 then
  redis.call("HSET", ledger, "how", how)
end
local row = 1
while row <= last do
  local run, places, fields = {}, {}, {}
  local fine, job = true, nil
  while row <= last and #run < RUN do
    if not fresh[row] or is_known(row) then
      replies[row] = 0
    else
      fine, job = pcall(plainJob, row)
      if not fine or not job then
        break
      end
      fields[#fields + 1], fields[#fields + 2] = digests[row], entered(row)
      run[#run + 1], places[#places + 1] = job, row
    end
    row = row + 1
  end
  if #run > 0 then
    addRun(run, places, fields)
  end
  if row <= last and #run < RUN then
    addOne(row)
    row = row + 1
  end
end
redis.call("PEXPIRE", ledger, life)
return {"done", replies}
