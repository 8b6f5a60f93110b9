--[[
  Adds a batch of jobs in order, as the official script of each one's kind would, and remembers the reply for a repeated
  call.

  The official bodies are included. Plain jobs (no parent, no deduplication, no repetition, neither delayed nor
  prioritized) go a shorter way to the same keys and the same events: what the queue says of itself is read once, ids
  are counted and pushed together, and options that are the same are encoded once. One without company, as most adds
  are, needs nothing of this and goes a still shorter way.

  A producer whose reply was lost sends the same call again under the same sequence number: it gets the first reply, and
  no job is added twice, not even one that was finished and removed meanwhile.

  KEYS   1 wait, 2 paused, 3 meta, 4 id, 5 completed, 6 delayed, 7 active, 8 events, 9 marker, 10 prioritized, 11 pc,
         12 waiting-children, 13 ledger
  ARGV   1 sequence number of the call ("" for no ledger), 2 ledger's life (ms), then four words for each job:
           kind (standard | delayed | prioritized | parent), packed arguments, data, packed options
  Reply  for each job its id, { id, hash } when it was not added because the job of that id stands in its place (the hash
         is empty when that job is gone), a negative code, or { error text }; an error when the server takes no writes at
         all, which it says before the first write
]]
--@official standard addStandardJob
--@official delayed addDelayedJob
--@official prioritized addPrioritizedJob
--@official parent addParentJob
--@own addAlone add_one
--@own plainOptions plain_options
--@own addPlainly add_many
--@own addOfficially add_officially
--@own withExisting existing_jobs
--@own writesRefused writes_refused

local sequence, life = ARGV[1], ARGV[2]
if sequence ~= "" then
  local known = redis.call("GET", KEYS[13])
  -- A packed { sequence, replies } begins so; what was answered before is unpacked only for who asks again.
  local beginning = "\146" .. cmsgpack.pack(sequence)
  if known and string.sub(known, 1, #beginning) == beginning then
    return withExisting(KEYS, ARGV, cmsgpack.unpack(known)[2])
  end
end

local replies = {}
local call = redis.call

-- --- the short way ---------------------------------------------------------------------------------------------------

local encoded = {} -- packed options → what the short way needs of them
local RUN = 1000 -- Lua hands at most some thousands of values to one call
-- The jobs from `at` on that may go together: { id, arguments, data, options }.
local function plainRun(at)
  local run = {}
  while at <= #ARGV and #run < RUN and ARGV[at] == "standard" do
    local options = plainOptions(KEYS, ARGV, encoded, ARGV[at + 3])
    local words = cmsgpack.unpack(ARGV[at + 1])
    if not options or words[5] or words[8] or words[9] then
      break
    end
    run[#run + 1] = {words[2], words, ARGV[at + 2], options}
    at = at + 4
  end
  return run
end

-- --- the batch -------------------------------------------------------------------------------------------------------

local PACKED_NIL = 0xC0 -- no text in UTF-8 has this byte
local bodies -- made only when it is needed
local function addOne(at)
  bodies = bodies or {
    standard = {standard, {KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]}},
    delayed = {delayed, {KEYS[9], KEYS[3], KEYS[4], KEYS[6], KEYS[5], KEYS[8]}},
    prioritized = {prioritized, {KEYS[9], KEYS[3], KEYS[4], KEYS[10], KEYS[6], KEYS[5], KEYS[7], KEYS[8], KEYS[11]}},
    parent = {parent, {KEYS[3], KEYS[4], KEYS[6], KEYS[12], KEYS[5], KEYS[8]}},
  }
  local body = bodies[ARGV[at]]
  -- Of the packed arguments, an array of nine, only the first two are read; the last is the deduplication key, or nil.
  local _, base, id = cmsgpack.unpack_limit(ARGV[at + 1], 2, 1)
  local deduplicated = string.byte(ARGV[at + 1], -1) ~= PACKED_NIL
  local existed = id ~= "" and call("EXISTS", base .. id) == 1
  local args = {ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]}
  return addOfficially(KEYS, ARGV, body[1], body[2], args, base, id, existed, deduplicated, KEYS[4])
end

local at = 3
while at <= #ARGV do
  local fine, run = pcall(plainRun, at)
  local ok, reply
  if fine and #run > 1 then
    ok, reply = pcall(addPlainly, KEYS, ARGV, run, replies)
    at = at + 4 * #run
  else
    if fine and #run == 1 then
      ok, reply = pcall(addAlone, KEYS, ARGV, run[1])
    else
      ok, reply = pcall(addOne, at)
    end
    if ok then
      replies[#replies + 1] = reply
    end
    at = at + 4
  end
  if not ok then
    local text = type(reply) == "table" and reply.err or tostring(reply)
    local refused = writesRefused(KEYS, ARGV, text)
    if refused then
      return {err = refused}
    end
    -- All that the failed step did not answer for.
    while #replies < (at - 3) / 4 do
      replies[#replies + 1] = {text}
    end
  end
end
if sequence ~= "" then
  call("SET", KEYS[13], cmsgpack.pack({sequence, replies}), "PX", life)
end
return withExisting(KEYS, ARGV, replies)
