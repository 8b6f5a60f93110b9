--[[
  Settles a batch of stream jobs and fetches up to `capacity` new ones, in one call.

  An outcome counts only while the entry is pending for this consumer and was not delivered again since: a late worker
  changes nothing.

  A job that is given back keeps its entry, and with it its position: the entry is pending for a consumer that belongs to
  no worker, its delivery is not counted, and these entries are fetched before all others.

  max_length         how many entries the stream keeps, "" for all
  result_base        start of result keys
  returned_consumer  the consumer that belongs to no worker
  kind … text        one settlement (`parts/envelope_outcomes.lua`): the reference is the entry id, the fence its
                     number of deliveries
  Reply              { codes, jobs, due (ms) of the next scheduled job or -1, error of the fetch or "",
                       id to wait after or "" }
                       jobs: id, deliveries, envelope (or all fields if there is none), ... flat
]]
--@keys stream scheduled dlq totals
--@args consumer_group consumer now_ms capacity max_length result_base returned_consumer
--@each kind job_id reference fence due_ms text
--@own outcomes envelope_outcomes
--@own named_fields named_fields
--@own entry_text entry_text
--@own group_info group_info
local max_jobs, max_entries = tonumber(capacity), tonumber(max_length)
-- A page that is read for trimming holds about this many bytes, whatever the size of a job.
local TRIM_BYTES = 1048576
-- Redis frees whole nodes of about 100 entries: fewer are not trimmed.
local TRIM_STEP = 100

local queue = {}

function queue.check_owner(_, entry_id, deliveries)
  local found = redis.call("XPENDING", stream, consumer_group, entry_id, entry_id, 1)[1]
  if not found then
    return -2
  elseif found[2] == returned_consumer and found[4] == tonumber(deliveries) - 1 then
    return 1 -- by an earlier call, whose reply was lost
  elseif found[2] ~= consumer or tostring(found[4]) ~= deliveries then
    return -6
  end
  return 0
end

function queue.release(kind, _, entry_id)
  if kind ~= "again" then
    redis.call("XACK", stream, consumer_group, entry_id)
  end
end

function queue.add(envelope)
  redis.call("XADD", stream, "*", "envelope", envelope)
end

function queue.give_back(envelope, entry_id, deliveries)
  if #redis.call("XRANGE", stream, entry_id, entry_id) == 0 then -- trimmed meanwhile, by another program
    queue.add(envelope)
    redis.call("XACK", stream, consumer_group, entry_id)
  else
    redis.call("XCLAIM", stream, consumer_group, returned_consumer, 0, entry_id, "RETRYCOUNT", deliveries - 1, "JUSTID")
  end
end

local function append(jobs, entry, deliveries)
  jobs[#jobs + 1] = entry[1]
  jobs[#jobs + 1] = deliveries
  jobs[#jobs + 1] = entry_text(KEYS, ARGV, entry[2])
end

-- Fetches jobs that were given back, in the order of the stream.
local function fetch_returned(jobs)
  local returned = redis.pcall("XPENDING", stream, consumer_group, "-", "+", max_jobs, returned_consumer)
  if returned.err or #returned == 0 then
    return
  end
  for _, one in ipairs(returned) do
    local entry = redis.call("XCLAIM", stream, consumer_group, consumer, 0, one[1])[1]
    if entry and entry[2] then
      append(jobs, entry, one[4] + 1)
    end
  end
  if #returned < max_jobs then
    redis.call("XGROUP", "DELCONSUMER", stream, consumer_group, returned_consumer)
  end
end

local function read(count)
  return redis.pcall("XREADGROUP", "GROUP", consumer_group, consumer, "COUNT", count, "STREAMS", stream, ">")
end

local function fetch(jobs)
  fetch_returned(jobs)
  local rest = max_jobs - #jobs / 3
  if rest <= 0 then
    return 0
  end
  local reply = read(rest)
  if type(reply) == "table" and reply.err and string.find(reply.err, "NOGROUP", 1, true) then
    redis.call("XGROUP", "CREATE", stream, consumer_group, "0", "MKSTREAM")
    reply = read(rest)
  end
  if type(reply) ~= "table" then
    return 0
  elseif reply.err then
    return reply.err
  end
  for _, entry in ipairs(reply[1][2]) do
    append(jobs, entry, 1)
  end
  return 0
end

local function is_earlier(one, other)
  local ms, seq = string.match(one, "^(%d+)-(%d+)$")
  local other_ms, other_seq = string.match(other, "^(%d+)-(%d+)$")
  ms, other_ms = tonumber(ms), tonumber(other_ms)
  return ms < other_ms or (ms == other_ms and tonumber(seq) < tonumber(other_seq))
end

-- The oldest entry that some group still needs: pending there, or not yet delivered after this one.
local function oldest_needed()
  local oldest
  for _, flat in ipairs(redis.call("XINFO", "GROUPS", stream)) do
    local info = named_fields(KEYS, ARGV, flat)
    local id = info["last-delivered-id"]
    if info["pending"] > 0 then
      id = redis.call("XPENDING", stream, info["name"])[2]
    end
    if not oldest or is_earlier(id, oldest) then
      oldest = id
    end
  end
  return oldest
end

local function trim()
  local excess = redis.call("XLEN", stream) - max_entries
  if excess < TRIM_STEP then
    return 0
  end
  local first = redis.call("XRANGE", stream, "-", "+", "COUNT", 1)[1]
  local size = 1
  for _, text in ipairs(first[2]) do
    size = size + #text
  end
  local page = math.min(excess, 1000, math.max(1, math.floor(TRIM_BYTES / size)))
  local done = redis.call("XRANGE", stream, "-", "(" .. oldest_needed(), "COUNT", page)
  if #done > 0 then
    redis.call("XTRIM", stream, "MINID", "~", done[#done][1])
  end
  return 0
end

local envelopes = outcomes(KEYS, ARGV, queue)
local attempt = envelopes.attempt
local codes, jobs, fetch_error = envelopes.settle(), {}, ""
if max_jobs > 0 then
  for _, reply in ipairs({attempt(envelopes.move_due, now_ms), attempt(fetch, jobs)}) do
    if reply ~= 0 then
      fetch_error = reply
    end
  end
end
if max_entries and #codes > 0 then
  attempt(trim)
end
local after = ""
if max_jobs > 0 and #jobs == 0 and fetch_error == "" then
  local info = group_info(KEYS, ARGV)
  after = info and info["last-delivered-id"] or "0-0"
end
return {codes, jobs, envelopes.next_due(), fetch_error, after}
