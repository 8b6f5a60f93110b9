--[[
  Adds flows, each whole or not at all: parents before their children, each job by the official body of its kind.

  A flow is checked before its first job is added. It is refused when a parent does not exist, when a job of it exists and
  has another parent, when a job with children is deduplicated, when a parent would have no child to wait for, or when a
  key of its queues has the wrong type. A refused flow leaves nothing; the other flows of the call are added. A repeated
  call under the same sequence number gets the first reply and adds nothing.

  KEYS   1 ledger, then twelve keys for each queue: wait, paused, meta, id, completed, delayed, active, events, marker,
         prioritized, pc, waiting-children
  ARGV   1 sequence number of the call, 2 ledger's life (ms), then for each flow the number of its jobs and five words for
         each of them:
           number of its queue, kind (standard | delayed | prioritized | parent), packed arguments, data, packed options
  Reply  for each flow { "added", for each job its id, or { id, hash } when it existed }
         or { "refused", place of the job, negative code, id of the job that stands for it, or error text };
         an error when the server takes no writes at all, which it says before the first write
]]
--@official standard addStandardJob
--@official delayed addDelayedJob
--@official prioritized addPrioritizedJob
--@official parent addParentJob
--@own addOfficially add_officially
--@own withExisting existing_jobs
--@own writesRefused writes_refused

local FAILED, NO_PARENT, OTHER_PARENT = 0, -5, -7
-- Ours; upstream's codes are far from it.
local PARENT_DEDUPLICATED, NO_CHILDREN = -101, -102
local call = redis.call

local function withHashes(replies)
  for _, reply in ipairs(replies) do
    if reply[1] == "added" then
      withExisting(KEYS, ARGV, reply[2])
    end
  end
  return replies
end

local sequence, life = ARGV[1], ARGV[2]
local known = call("GET", KEYS[1])
if known then
  local entry = cmsgpack.unpack(known)
  if entry[1] == sequence then
    return withHashes(entry[2])
  end
end

-- Which of a queue's twelve keys each body takes, in its order.
local bodies = {
  standard = {standard, {1, 2, 3, 4, 5, 6, 7, 8, 9}},
  delayed = {delayed, {9, 3, 4, 6, 5, 8}},
  prioritized = {prioritized, {9, 3, 4, 10, 6, 5, 7, 8, 11}},
  parent = {parent, {3, 4, 6, 12, 5, 8}},
}

-- The jobs of the flow whose words begin at `at`, and where the next flow begins.
local function flowAt(at)
  local jobs = {}
  for place = 1, tonumber(ARGV[at]) do
    local word = at + 5 * place - 4
    local words = cmsgpack.unpack(ARGV[word + 2])
    jobs[place] = {
      queue = 1 + (tonumber(ARGV[word]) - 1) * 12, kind = ARGV[word + 1], args = {ARGV[word + 2], ARGV[word + 3], ARGV[word + 4]},
      base = words[1], id = words[2], key = words[1] .. words[2], parent = words[5], deduplication = words[9],
    }
  end
  return jobs, at + 5 * #jobs + 1
end

-- --- checking --------------------------------------------------------------------------------------------------------

local TYPES = {"list", "list", "hash", "string", "zset", "zset", "list", "stream", "zset", "zset", "string", "zset"}
local sound = {} -- queues whose keys have been looked at

local function checkTypes(queue)
  for number, expected in ipairs(TYPES) do
    local found = call("TYPE", KEYS[queue + number]).ok
    if found ~= "none" and found ~= expected then
      error("WRONGTYPE " .. KEYS[queue + number] .. " is a " .. found)
    end
  end
  sound[queue] = true
end

-- The id of the job because of which a job would not be stored; nothing when it would be. `claimed` are the jobs of the
-- flow that take a deduplication key, by that key.
local function standIn(job, claimed)
  local replaces = cmsgpack.unpack(job.args[3])["de"]["replace"]
  local sibling = claimed[job.deduplication]
  local other, isDelayed
  if sibling then
    other, isDelayed = sibling.id, sibling.kind == "delayed"
  else
    other = call("GET", job.deduplication)
    isDelayed = other and replaces and call("ZSCORE", KEYS[job.queue + 6], other)
  end
  if other and not (replaces and isDelayed) then
    return other
  end
  claimed[job.deduplication] = job
end

-- Why the flow cannot be added: place, code, detail. Nothing when it can.
local function obstacle(jobs)
  local parents = {} -- job of the flow → the key of its parent, "" for none
  local awaited, claimed = {}, {}
  for place, job in ipairs(jobs) do
    if not sound[job.queue] then
      checkTypes(job.queue)
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
    if owner and owner ~= "" and parent and owner ~= parent then
      if parents[owner] or call("EXISTS", owner) == 1 then
        return place, OTHER_PARENT, ""
      end
      -- Upstream leaves such a job with the parent that is gone: ours does not wait for it.
      parents[job.key] = owner
    else
      local other = not owner and job.deduplication and standIn(job, claimed)
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
  local body = bodies[job.kind]
  local keys = {}
  for i, number in ipairs(body[2]) do
    keys[i] = KEYS[job.queue + number]
  end
  return addOfficially(
    KEYS, ARGV, body[1], keys, job.args, job.base, job.id, job.existed, job.deduplication, KEYS[job.queue + 4])
end

local function textOf(failure)
  return type(failure) == "table" and failure.err or tostring(failure)
end

-- What is said of a flow; the second value is the server's refusal to write at all.
local function addWhole(jobs)
  local ok, place, code, detail = pcall(obstacle, jobs)
  if not ok then
    return {"refused", 1, FAILED, textOf(place)}
  elseif place then
    return {"refused", place, code, detail}
  end
  local replies = {}
  for number, job in ipairs(jobs) do
    local added, reply = pcall(add, job)
    if not added then
      return {"refused", number, FAILED, textOf(reply)}, writesRefused(KEYS, ARGV, textOf(reply))
    elseif type(reply) == "number" then
      return {"refused", number, reply, ""}
    end
    replies[number] = reply
  end
  return {"added", replies}
end

local flows, at = {}, 3
while at <= #ARGV do
  flows[#flows + 1], at = flowAt(at)
end
local replies = {}
for number, jobs in ipairs(flows) do
  local reply, refused = addWhole(jobs)
  if refused then
    return {err = refused}
  end
  replies[number] = reply
end
call("SET", KEYS[1], cmsgpack.pack({sequence, replies}), "PX", life)
return withHashes(replies)
