--[[
  Adds flows, each whole or not at all: parents before their children, each job by the official script of its kind.

  A flow is checked before its first job is added. It is refused when a parent does not exist, when a job of it exists and
  has another parent, when a job with children is deduplicated, when a parent would have no child to wait for, or when a
  key of its queues has the wrong type. A refused flow leaves nothing; the other flows of the call are added. A repeated
  call under the same sequence number gets the first reply and adds nothing.

  wait …     the keys of one queue, for each queue of the flows
  ledger_ms  how long the reply is remembered
  queue …    one job; the number of jobs of a flow precedes its jobs
             queue: the number of its queue; kind: as for `add_jobs`; arguments and options: packed
  Reply      for each flow { "added", for each job its id, or { id, hash } when it existed }
             or { "refused", place of the job, negative code, id of the job that exists instead, or error text };
             an error when the server accepts no writes at all, which it reports before the first write
]]
--@keys ledger
--@each_keys wait paused meta id_counter completed delayed active events marker prioritized pc waiting_children
--@args sequence ledger_ms
--@each queue kind arguments data options
--@official add_standard addStandardJob
--@official add_delayed addDelayedJob
--@official add_prioritized addPrioritizedJob
--@official add_parent addParentJob
--@own add_official add_official
--@own add_grouped add_grouped
--@own group_size group_size
--@own existing_jobs existing_jobs
--@own error_text error_text
--@own writes_refused writes_refused

local FAILED, NO_PARENT, OTHER_PARENT = 0, -5, -7
-- Codes of toril; upstream has none near them.
local PARENT_DEDUPLICATED, NO_CHILDREN = -101, -102
local GROUP = '\165group' -- the packed name of the option; only options that hold it are unpacked for it
local call = redis.call

local function with_hashes(replies)
  for _, reply in ipairs(replies) do
    if reply[1] == "added" then
      existing_jobs(KEYS, ARGV, reply[2])
    end
  end
  return replies
end

local known = call("GET", ledger)
if known then
  local entry = cmsgpack.unpack(known)
  if entry[1] == sequence then
    return with_hashes(entry[2])
  end
end

-- The script of each kind, and which of the queue's keys it takes, in its order.
local scripts = {
  standard = {add_standard, {WAIT, PAUSED, META, ID_COUNTER, COMPLETED, DELAYED, ACTIVE, EVENTS, MARKER}},
  delayed = {add_delayed, {MARKER, META, ID_COUNTER, DELAYED, COMPLETED, EVENTS}},
  prioritized = {add_prioritized, {MARKER, META, ID_COUNTER, PRIORITIZED, DELAYED, COMPLETED, ACTIVE, EVENTS, PC}},
  parent = {add_parent, {META, ID_COUNTER, DELAYED, WAITING_CHILDREN, COMPLETED, EVENTS}},
}

-- The jobs of the flow whose arguments begin at `at` with the number of jobs, and where the next flow begins.
local function read_flow(at)
  local jobs, count = {}, tonumber(ARGV[at])
  for place = 1, count do
    local item = at + 1 + ITEM_SIZE * (place - 1)
    local packed = ARGV[item + ARGUMENTS]
    local arguments, kind, packed_options = cmsgpack.unpack(packed), ARGV[item + KIND], ARGV[item + OPTIONS]
    local options = string.find(packed_options, GROUP, 1, true) and cmsgpack.unpack(packed_options) or {}
    if kind == "grouped" then
      kind = (options["delay"] or 0) > 0 and "delayed" or "prioritized"
    end
    jobs[place] = {
      queue = FIRST_KEY + KEY_SIZE * (tonumber(ARGV[item + QUEUE]) - 1), kind = kind,
      args = {packed, ARGV[item + DATA], packed_options}, base = arguments[1], id = arguments[2],
      key = arguments[1] .. arguments[2], parent = arguments[5], deduplication = arguments[9],
      group = options["group"] and options["group"]["id"],
    }
  end
  return jobs, at + 1 + ITEM_SIZE * count
end

-- --- checking --------------------------------------------------------------------------------------------------------

local TYPES = {
  [WAIT] = "list", [PAUSED] = "list", [META] = "hash", [ID_COUNTER] = "string", [COMPLETED] = "zset", [DELAYED] = "zset",
  [ACTIVE] = "list", [EVENTS] = "stream", [MARKER] = "zset", [PRIORITIZED] = "zset", [PC] = "string",
  [WAITING_CHILDREN] = "zset",
}
local checked = {} -- queues whose keys have been checked

local function check_types(queue)
  for number = 0, KEY_SIZE - 1 do
    local found = call("TYPE", KEYS[queue + number]).ok
    if found ~= "none" and found ~= TYPES[number] then
      error("WRONGTYPE " .. KEYS[queue + number] .. " is a " .. found)
    end
  end
  checked[queue] = true
end

-- The id of the job because of which a job would not be stored; nothing when it would be. `claimed` are the jobs of the
-- flow that take a deduplication key, by that key.
local function duplicate_of(job, claimed)
  local replaces = cmsgpack.unpack(job.args[3])["de"]["replace"]
  local sibling = claimed[job.deduplication]
  local other, is_delayed
  if sibling then
    other, is_delayed = sibling.id, sibling.kind == "delayed"
  else
    other = call("GET", job.deduplication)
    is_delayed = other and replaces and call("ZSCORE", KEYS[job.queue + DELAYED], other)
  end
  if other and not (replaces and is_delayed) then
    return other
  end
  claimed[job.deduplication] = job
end

-- The code of a group that has no room for a job. `sizes` are the jobs of each group that the flow adds before it.
local function full_group(job, sizes)
  if job.existed or not job.group or job.kind == "parent" then
    return
  end
  local name = job.base .. job.group
  local found = group_size(KEYS, ARGV, job.base, job.group, sizes[name])
  sizes[name] = (sizes[name] or 0) + 1
  return type(found) == "number" and found
end

-- Why the flow cannot be added: place, code, detail. Nothing when it can.
local function find_obstacle(jobs)
  local parents = {} -- job of the flow → the key of its parent, "" for none
  local awaited, claimed, sizes = {}, {}, {}
  for place, job in ipairs(jobs) do
    if not checked[job.queue] then
      check_types(job.queue)
    end
    local parent, owner = job.parent, parents[job.key]
    if parent and not parents[parent] and call("EXISTS", parent) == 0 then
      return place, NO_PARENT, ""
    end
    if job.id ~= "" and not owner and call("EXISTS", job.key) == 1 then
      owner = call("HGET", job.key, "parentKey") or ""
      job.known = true
    end
    job.existed = owner ~= nil
    local is_full = full_group(job, sizes)
    if is_full then
      return place, is_full, ""
    end
    if owner and owner ~= "" and parent and owner ~= parent then
      if parents[owner] or call("EXISTS", owner) == 1 then
        return place, OTHER_PARENT, ""
      end
      -- Upstream leaves such a job with the parent that does not exist any more: the new parent does not wait for it.
      parents[job.key] = owner
    else
      local other = not owner and job.deduplication and duplicate_of(job, claimed)
      if other and job.kind == "parent" then
        return place, PARENT_DEDUPLICATED, other
      end
      if not other then
        parents[job.key] = parent or owner or ""
        awaited[parent or ""] = true
      end
    end
  end
  for place, job in ipairs(jobs) do
    if job.kind == "parent" and not job.known and not awaited[job.key] then
      return place, NO_CHILDREN, ""
    end
  end
end

-- --- adding ----------------------------------------------------------------------------------------------------------

local function add(job)
  local function add_as(kind, options)
    local script, keys, args = scripts[kind], {}, {job.args[1], job.args[2], options}
    for i, number in ipairs(script[2]) do
      keys[i] = KEYS[job.queue + number]
    end
    return add_official(
      KEYS, ARGV, script[1], keys, args, job.base, job.id, job.existed, job.deduplication, KEYS[job.queue + ID_COUNTER])
  end
  if job.group then
    return add_grouped(KEYS, ARGV, job.base, job.id, job.args[3], add_as, job.kind == "parent")
  end
  return add_as(job.kind, job.args[3])
end

-- The reply to a flow; the second value is the server's message when it accepts no writes at all.
local function add_whole(jobs)
  local ok, place, code, detail = pcall(find_obstacle, jobs)
  if not ok then
    return {"refused", 1, FAILED, error_text(KEYS, ARGV, place)}
  elseif place then
    return {"refused", place, code, detail}
  end
  local replies = {}
  for number, job in ipairs(jobs) do
    local added, reply = pcall(add, job)
    if not added then
      local text = error_text(KEYS, ARGV, reply)
      return {"refused", number, FAILED, text}, writes_refused(KEYS, ARGV, text)
    elseif type(reply) == "number" then
      return {"refused", number, reply, ""}
    end
    replies[number] = reply
  end
  return {"added", replies}
end

local flows, at = {}, FIRST_ITEM
while at <= #ARGV do
  flows[#flows + 1], at = read_flow(at)
end
local replies = {}
for number, jobs in ipairs(flows) do
  local reply, refused = add_whole(jobs)
  if refused then
    return {err = refused}
  end
  replies[number] = reply
end
call("SET", ledger, cmsgpack.pack({sequence, replies}), "PX", ledger_ms)
return with_hashes(replies)
