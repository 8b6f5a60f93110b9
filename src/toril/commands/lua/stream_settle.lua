--[[
  Settles a batch of stream jobs and takes up to N new ones, in one call.

  An outcome counts only while the entry is pending for this consumer and was not delivered again since: a late worker
  changes nothing.

  A job that is given back keeps its entry, and with it its place: the entry is pending for a consumer that stands for
  nobody, its delivery not counted, and whoever takes jobs takes those first.

  KEYS   1 stream, 2 scheduled, 3 dlq, 4 totals
  ARGV   1 group, 2 consumer, 3 now (ms), 4 how many to take, 5 how many entries the stream keeps ("" for all),
         6 start of result keys, 7 the consumer that stands for nobody, then settlements
         (`parts/envelope_outcomes.lua`): the reference is the entry id, the fence its number of deliveries
  Reply  { codes, jobs, due (ms) of the next scheduled job or -1, error of the pickup or "", id to wait after or "" }
           jobs: id, deliveries, envelope (or all fields if there is none), ... flat
]]
--@own outcomes envelope_outcomes
--@own named_fields named_fields
--@own entry_text entry_text
local group, consumer, now, room, keep = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local returned = ARGV[7]
local FIRST = 8
-- A page read for trimming holds about this many bytes, whatever a job weighs.
local TRIM_BYTES = 1048576
-- Redis frees whole nodes of about 100 entries; less is not worth a look.
local TRIM_STEP = 100

local queue = {results = ARGV[6]}

function queue.hold(_, entry_id, deliveries)
  local found = redis.call("XPENDING", KEYS[1], group, entry_id, entry_id, 1)[1]
  if not found then
    return -2
  elseif found[2] == returned and found[4] == tonumber(deliveries) - 1 then
    return 1 -- by an earlier call, whose reply was lost
  elseif found[2] ~= consumer or tostring(found[4]) ~= deliveries then
    return -6
  end
  return 0
end

function queue.let_go(kind, _, entry_id)
  if kind ~= "again" then
    redis.call("XACK", KEYS[1], group, entry_id)
  end
end

function queue.add(envelope)
  redis.call("XADD", KEYS[1], "*", "envelope", envelope)
end

function queue.give_back(envelope, entry_id, deliveries)
  if #redis.call("XRANGE", KEYS[1], entry_id, entry_id) == 0 then -- trimmed meanwhile, by somebody else
    queue.add(envelope)
    redis.call("XACK", KEYS[1], group, entry_id)
  else
    redis.call("XCLAIM", KEYS[1], group, returned, 0, entry_id, "RETRYCOUNT", deliveries - 1, "JUSTID")
  end
end

local function keep_job(jobs, entry, deliveries)
  jobs[#jobs + 1] = entry[1]
  jobs[#jobs + 1] = deliveries
  jobs[#jobs + 1] = entry_text(KEYS, ARGV, entry[2])
end

-- Jobs that were given back, in the order of the stream.
local function take_returned(jobs)
  local waiting = redis.pcall("XPENDING", KEYS[1], group, "-", "+", room, returned)
  if waiting.err or #waiting == 0 then
    return
  end
  for _, one in ipairs(waiting) do
    local entry = redis.call("XCLAIM", KEYS[1], group, consumer, 0, one[1])[1]
    if entry and entry[2] then
      keep_job(jobs, entry, one[4] + 1)
    end
  end
  if #waiting < room then
    redis.call("XGROUP", "DELCONSUMER", KEYS[1], group, returned)
  end
end

local function read(count)
  return redis.pcall("XREADGROUP", "GROUP", group, consumer, "COUNT", count, "STREAMS", KEYS[1], ">")
end

local function take(jobs)
  take_returned(jobs)
  local rest = room - #jobs / 3
  if rest <= 0 then
    return 0
  end
  local reply = read(rest)
  if type(reply) == "table" and reply.err and string.find(reply.err, "NOGROUP", 1, true) then
    redis.call("XGROUP", "CREATE", KEYS[1], group, "0", "MKSTREAM")
    reply = read(rest)
  end
  if type(reply) ~= "table" then
    return 0
  elseif reply.err then
    return reply.err
  end
  for _, entry in ipairs(reply[1][2]) do
    keep_job(jobs, entry, 1)
  end
  return 0
end

local function earlier(one, other)
  local ms, seq = string.match(one, "^(%d+)-(%d+)$")
  local other_ms, other_seq = string.match(other, "^(%d+)-(%d+)$")
  ms, other_ms = tonumber(ms), tonumber(other_ms)
  return ms < other_ms or (ms == other_ms and tonumber(seq) < tonumber(other_seq))
end

-- The oldest entry that some group still needs: pending there, or not yet delivered after this one.
local function oldest_needed()
  local oldest
  for _, flat in ipairs(redis.call("XINFO", "GROUPS", KEYS[1])) do
    local info = named_fields(KEYS, ARGV, flat)
    local id = info["last-delivered-id"]
    if info["pending"] > 0 then
      id = redis.call("XPENDING", KEYS[1], info["name"])[2]
    end
    if not oldest or earlier(id, oldest) then
      oldest = id
    end
  end
  return oldest
end

local function trim()
  local excess = redis.call("XLEN", KEYS[1]) - keep
  if excess < TRIM_STEP then
    return 0
  end
  local first = redis.call("XRANGE", KEYS[1], "-", "+", "COUNT", 1)[1]
  local weight = 1
  for _, word in ipairs(first[2]) do
    weight = weight + #word
  end
  local page = math.min(excess, 1000, math.max(1, math.floor(TRIM_BYTES / weight)))
  local done = redis.call("XRANGE", KEYS[1], "-", "(" .. oldest_needed(), "COUNT", page)
  if #done > 0 then
    redis.call("XTRIM", KEYS[1], "MINID", "~", done[#done][1])
  end
  return 0
end

local function last_delivered()
  for _, flat in ipairs(redis.call("XINFO", "GROUPS", KEYS[1])) do
    local info = named_fields(KEYS, ARGV, flat)
    if info["name"] == group then
      return info["last-delivered-id"]
    end
  end
  return "0-0"
end

local envelopes = outcomes(KEYS, ARGV, queue)
local attempt = envelopes.attempt
local codes, jobs, trouble = envelopes.settle(FIRST), {}, ""
if room > 0 then
  for _, step in ipairs({attempt(envelopes.move_due, now), attempt(take, jobs)}) do
    if step ~= 0 then
      trouble = step
    end
  end
end
if keep and #codes > 0 then
  attempt(trim)
end
local after = ""
if room > 0 and #jobs == 0 and trouble == "" then
  after = last_delivered()
end
return {codes, jobs, envelopes.next_due(), trouble, after}
