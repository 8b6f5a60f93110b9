--[[
  Adds rows of a table as jobs, each row once, however often the call or the task that sends it is repeated.

  The ledger records the rows of a run by a digest; a row that is in it is known and is not added again, even when its
  job has ended and was removed. A call for a queue that is full, or of a run that exceeds its rate, adds nothing.

  The ledger is a hash:
    how           how the rows of the run are known; rows that are known in another way cannot be compared with them
    saves         how many saves there were; save:<id> is the number of one of them
    <digest>      "" for a row that is known by itself (its id, its key, or its content counted over all tasks), or a list
                  ";<partition>.<save>" for a row that is known by its content within a task: equal rows of different
                  partitions have one digest

  A row that is known within its partition and was entered by an earlier save under another partition only would be added
  again: then nothing is added, and the partition is returned.

  wait, paused  on list and stream queues: the list or stream, and the sorted set of scheduled jobs; the keys that follow
                up to waiting_children are then the list or stream
  run_rate      when the next row of the run may be added
  ledger_ms     how long the ledger is kept
  max_waiting   most jobs that may wait, "" for any number
  rate          most jobs per second, "" for any number
  known_by      how rows are known
  save          id of the save
  partition     of the task
  consumer_group  of a stream, or ""
  first         "-" for a row known by itself; the digest of the first equal row of this task, "" if this is the first
  kind          standard, delayed, prioritized, parent, grouped, list, stream or reject
  arguments     packed; on list and stream queues the due time in ms, or "" for now; the reason of a rejection
  data          or the envelope, or the rejected row
  options       packed
  Reply         { "full", jobs waiting } or { "fast", ms to wait } or { "how", how the run knows its rows } or
                { "moved", partition that entered a row before } or { "done", for each row 1 new, 0 known, negative code,
                or { error text }; fewer than rows where the queue became full }
]]
--@keys wait paused meta id_counter completed delayed active events marker prioritized pc waiting_children
--@keys ledger run_rate rejects
--@args ledger_ms max_waiting rate known_by save partition consumer_group
--@each digest first kind arguments data options
--@own official_adds official_adds
--@own add_grouped add_grouped
--@own add_deduplicated add_deduplicated
--@own plain_options plain_options
--@own add_many add_many
--@own named_fields named_fields
--@own error_text error_text

local REJECTS_KEPT = 10000
local MAX_RUN = 1000 -- Lua passes at most some thousands of values to one call
local most_waiting, most_per_second = tonumber(max_waiting), tonumber(rate)
local rows = (#ARGV - FIRST_ITEM + 1) / ITEM_SIZE

-- One value of a row.
local function value(row, offset)
  return ARGV[FIRST_ITEM + ITEM_SIZE * (row - 1) + offset]
end

-- --- which rows are known ---------------------------------------------------------------------------------------------

local before = redis.call("HGET", ledger, "how")
if before and before ~= known_by then
  return {"how", before}
end

local digests, firsts = {}, {} -- of each row; a row that is known by itself has no first
local names = {}
for row = 1, rows do
  local digest, first = value(row, DIGEST), value(row, FIRST)
  digests[row], names[#names + 1] = digest, digest
  if first == "" then
    firsts[row] = digest
  elseif first ~= "-" then
    firsts[row], names[#names + 1] = first, first
  end
end

local entries = {} -- digest → its entry, false when there is none
for from = 1, #names, MAX_RUN do
  local to = math.min(from + MAX_RUN - 1, #names)
  for place, entry in ipairs(redis.call("HMGET", ledger, unpack(names, from, to))) do
    entries[names[from + place - 1]] = entry
  end
end

local this_partition = ";" .. partition .. "."
local function is_known(row)
  local entry = entries[digests[row]]
  return entry and (not firsts[row] or string.find(entry, this_partition, 1, true) ~= nil)
end

local save_number = redis.call("HGET", ledger, "save:" .. save) or nil

-- The partition under which an earlier save entered the content of a row; nil when there is no other.
local function other_partition(row)
  local entry = firsts[row] and entries[firsts[row]]
  for where, by in string.gmatch(entry or "", ";(%d+)%.(%d+)") do
    if where ~= partition and by ~= save_number then
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

-- --- how many rows are admitted ---------------------------------------------------------------------------------------

local function undelivered(after, limit)
  local count, page = 0, nil
  repeat
    page = redis.call("XRANGE", wait, "(" .. after, "+", "COUNT", 500)
    count = count + #page
    if #page > 0 then
      after = page[#page][1]
    end
  until #page == 0 or count >= limit
  return count
end

-- Jobs that a worker could fetch now: delayed, active and finished ones do not count.
local function count_waiting()
  if prioritized ~= wait then
    return redis.call("LLEN", wait) + redis.call("LLEN", paused) + redis.call("ZCARD", prioritized)
  elseif consumer_group == "" then
    return redis.call("LLEN", wait)
  end
  local groups = redis.pcall("XINFO", "GROUPS", wait)
  for _, flat in ipairs(groups.err and {} or groups) do
    local info = named_fields(KEYS, ARGV, flat)
    if info["name"] == consumer_group then
      return info["lag"] or undelivered(info["last-delivered-id"], most_waiting)
    end
  end
  return redis.call("XLEN", wait)
end

local WAITS = {standard = true, prioritized = true, grouped = true, list = true, stream = true}
local HAS_DUE_TIME = {list = true, stream = true} -- as its arguments
local function will_wait(row)
  local kind = value(row, KIND)
  return WAITS[kind] and (not HAS_DUE_TIME[kind] or value(row, ARGUMENTS) == "")
end

-- The last row that the capacity admits, and how many up to it are new.
local function admit(capacity)
  local new, seen = 0, {}
  for row = 1, rows do
    local digest = digests[row]
    if fresh[row] and not seen[digest] then
      if will_wait(row) then
        capacity = capacity - 1
        if capacity < 0 then
          return row - 1, new
        end
      end
      seen[digest] = true
      new = new + 1
    end
  end
  return rows, new
end

local waiting = most_waiting and count_waiting() or 0
local last, new = admit(most_waiting and most_waiting - waiting or math.huge)
if last == 0 then
  return {"full", waiting}
end

if most_per_second and new > 0 then
  local time = redis.call("TIME")
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local due = math.max(tonumber(redis.call("GET", run_rate) or "0"), now)
  -- A run may be a second ahead: a call carries many rows, and without this the run would fall below its rate.
  if due > now + 1000 then
    return {"fast", math.ceil(due - now - 1000)}
  end
  local following = due + new * 1000 / most_per_second
  redis.call("SET", run_rate, string.format("%.3f", following), "PX", math.ceil(following - now) + 60000)
end

-- --- adding -----------------------------------------------------------------------------------------------------------

local function add_to_list(keys, args)
  if args[1] ~= "" then
    redis.call("ZADD", keys[2], args[1], args[2])
  else
    redis.call("LPUSH", keys[1], args[2])
  end
  return 1
end

local function add_to_stream(keys, args)
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

local scripts = official_adds(KEYS, ARGV)
local NOT_BULLMQ = {list = true, stream = true, reject = true} -- their arguments are no packed list
scripts.list = {add_to_list, {wait, paused}}
scripts.stream = {add_to_stream, {wait, paused}}
scripts.reject = {reject, {rejects}}

local encoded = {} -- packed options → encoded for plain jobs

-- The row as a plain job { id, arguments, data, options }; nil when it is none.
local function plain_job(row)
  if value(row, KIND) ~= "standard" then
    return nil
  end
  local options = plain_options(KEYS, ARGV, encoded, value(row, OPTIONS))
  local arguments = cmsgpack.unpack(value(row, ARGUMENTS))
  if options and not arguments[5] and not arguments[8] and not arguments[9] then
    return {arguments[2], arguments, value(row, DATA), options}
  end
end

local replies = {}

-- The number of this save, given when the first row is entered that needs it.
local function number_of_save()
  if not save_number then
    save_number = tostring(redis.call("HINCRBY", ledger, "saves", 1))
    redis.call("HSET", ledger, "save:" .. save, save_number)
  end
  return save_number
end

-- The ledger's entry of a row with this task in it; the caller writes it to the ledger.
local function enter(row)
  local digest = digests[row]
  local entry = firsts[row] and (entries[digest] or "") .. this_partition .. number_of_save() or ""
  entries[digest] = entry
  return entry
end

-- Removes a row that the server refused from the ledger: another attempt may succeed.
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

local function set_reply(row, ok, reply)
  if ok and (type(reply) ~= "number" or reply >= 0) then
    replies[row] = 1
  else
    withdraw(row)
    replies[row] = ok and reply or {error_text(KEYS, ARGV, reply)}
  end
end

local function run_script(row)
  local kind, packed, options = value(row, KIND), value(row, ARGUMENTS), value(row, OPTIONS)
  local arguments = NOT_BULLMQ[kind] and {} or cmsgpack.unpack(packed)
  local function add(its_kind, its_options)
    local script, args = scripts[its_kind], {packed, value(row, DATA), its_options}
    if arguments[9] then
      return add_deduplicated(KEYS, ARGV, script[1], script[2], args, arguments[1], arguments[2])
    end
    return script[1](script[2], args)
  end
  if kind == "grouped" then
    return add_grouped(KEYS, ARGV, arguments[1], arguments[2], options, add)
  end
  return add(kind, options)
end

local function add_by_script(row)
  redis.call("HSET", ledger, digests[row], enter(row))
  set_reply(row, pcall(run_script, row))
end

local function add_run(run, places, fields)
  local ids = {}
  redis.call("HSET", ledger, unpack(fields))
  local ok, reply = pcall(add_many, KEYS, ARGV, run, ids)
  for place, row in ipairs(places) do
    set_reply(row, ok or ids[place] ~= nil, ids[place] or reply)
  end
end

if not before and new > 0 then
  redis.call("HSET", ledger, "how", known_by)
end
local row = 1
while row <= last do
  local run, places, fields = {}, {}, {}
  local is_read, job = true, nil
  while row <= last and #run < MAX_RUN do
    if not fresh[row] or is_known(row) then
      replies[row] = 0
    else
      is_read, job = pcall(plain_job, row)
      if not is_read or not job then
        break
      end
      fields[#fields + 1], fields[#fields + 2] = digests[row], enter(row)
      run[#run + 1], places[#places + 1] = job, row
    end
    row = row + 1
  end
  if #run > 0 then
    add_run(run, places, fields)
  end
  if row <= last and #run < MAX_RUN then
    add_by_script(row)
    row = row + 1
  end
end
redis.call("PEXPIRE", ledger, ledger_ms)
return {"done", replies}
