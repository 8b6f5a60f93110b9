--[[
  Adds a batch of jobs in order, as the official script of each job's kind would, and remembers the reply for a repeated
  call.

  Plain jobs (no parent, no deduplication, no repetition, neither delayed nor prioritized) are added by
  `parts/add_many.lua` with the same keys and events in fewer calls: the settings of the queue are read once, ids are
  counted and pushed together, and equal options are encoded once. A single plain job, as most adds are, is added by `parts/add_one.lua`. All
  others are added by the official scripts.

  A producer whose reply was lost sends the same call again under the same sequence number: it gets the first reply, and
  no job is added twice, not even one that has ended and was removed meanwhile.

  sequence   number of the call, "" for no ledger
  ledger_ms  how long the reply is remembered
  kind       standard, delayed, prioritized, parent or grouped (prioritized or delayed, with a priority made here)
  arguments  packed, as options
  Reply      for each job its id, { id, hash } when it was not added because the job of that id exists (the hash is empty
             when that job was removed), a negative code, or { error text }; an error when the server accepts no writes
             at all, which it reports before the first write
]]
--@keys wait paused meta id_counter completed delayed active events marker prioritized pc waiting_children ledger
--@args sequence ledger_ms
--@each kind arguments data options
--@own add_one add_one
--@own plain_options plain_options
--@own add_many add_many
--@own official_adds official_adds
--@own add_official add_official
--@own add_grouped add_grouped
--@own with_hashes existing_jobs
--@own error_text error_text
--@own writes_refused writes_refused

local replies = {}
local call = redis.call
local as_given = true -- each job so far was added under the id that the call gives
local noted = false -- the ledger says so already

local encoded = {} -- packed options → encoded for plain jobs
local MAX_RUN = 1000 -- Lua passes at most some thousands of values to one call
-- The plain jobs from `at` on that are added together: { id, arguments, data, options }.
local function plain_run(at)
  local run = {}
  while at <= #ARGV and #run < MAX_RUN and ARGV[at + KIND] == "standard" do
    local options = plain_options(KEYS, ARGV, encoded, ARGV[at + OPTIONS])
    local arguments = cmsgpack.unpack(ARGV[at + ARGUMENTS])
    if not options or arguments[5] or arguments[8] or arguments[9] then
      break
    end
    run[#run + 1] = {arguments[2], arguments, ARGV[at + DATA], options}
    at = at + ITEM_SIZE
  end
  return run
end

-- The ledger holds the number of the last call, if all its jobs were added under the ids that the call gives, else packed
-- { sequence, replies }.
local function replies_before(known)
  if known == sequence then
    local ids = {}
    for at = FIRST_ITEM, #ARGV, ITEM_SIZE do
      local _, _, id = cmsgpack.unpack_limit(ARGV[at + ARGUMENTS], 2, 1)
      ids[#ids + 1] = id
    end
    return ids
  end
  -- Replies are unpacked only for a repeated call.
  local beginning = "\146" .. cmsgpack.pack(sequence)
  if known and string.sub(known, 1, #beginning) == beginning then
    return cmsgpack.unpack(known)[2]
  end
end

local is_read, run = pcall(plain_run, FIRST_ITEM)
if sequence ~= "" then
  local known
  if is_read and #run == 1 and run[1][1] ~= "" and #ARGV < FIRST_ITEM + ITEM_SIZE then
    -- A single job, as most are: it is noted as added by the command that reads the ledger.
    known = redis.pcall("SET", ledger, sequence, "PX", ledger_ms, "GET")
    if type(known) == "table" then
      return {err = writes_refused(KEYS, ARGV, known.err) or known.err}
    end
    noted = true
  else
    known = call("GET", ledger)
  end
  local before = replies_before(known)
  if before then
    if noted and known ~= sequence then
      call("SET", ledger, known, "PX", ledger_ms)
    end
    return with_hashes(KEYS, ARGV, before)
  end
end

local PACKED_NIL = 0xC0 -- no text in UTF-8 has this byte
local scripts -- made only when it is needed
local function add_by_script(at)
  scripts = scripts or official_adds(KEYS, ARGV)
  local kind, packed, options = ARGV[at + KIND], ARGV[at + ARGUMENTS], ARGV[at + OPTIONS]
  -- Of the packed arguments, an array of nine, only the first two are read; the last is the deduplication key, or nil.
  local _, base, id = cmsgpack.unpack_limit(packed, 2, 1)
  local deduplicated = string.byte(packed, -1) ~= PACKED_NIL
  local existed = id ~= "" and call("EXISTS", base .. id) == 1
  local function add(its_kind, its_options)
    local script, args = scripts[its_kind], {packed, ARGV[at + DATA], its_options}
    return add_official(KEYS, ARGV, script[1], script[2], args, base, id, existed, deduplicated, id_counter)
  end
  if kind == "grouped" then
    return add_grouped(KEYS, ARGV, base, id, options, add)
  end
  return add(kind, options)
end

local at = FIRST_ITEM
while at <= #ARGV do
  local ok, reply
  if is_read and #run > 1 then
    local before = #replies
    ok, reply = pcall(add_many, KEYS, ARGV, run, replies)
    at = at + ITEM_SIZE * #run
    for place, job in ipairs(run) do
      as_given = as_given and replies[before + place] == job[1]
    end
  else
    if is_read and #run == 1 then
      ok, reply = pcall(add_one, KEYS, ARGV, run[1])
      as_given = as_given and reply == run[1][1]
    else
      ok, reply = pcall(add_by_script, at)
      as_given = false
    end
    if ok then
      replies[#replies + 1] = reply
    end
    at = at + ITEM_SIZE
  end
  if not ok then
    local text = error_text(KEYS, ARGV, reply)
    local refused = writes_refused(KEYS, ARGV, text)
    if refused then
      return {err = refused}
    end
    -- All jobs to which the failed step has not replied.
    while #replies < (at - FIRST_ITEM) / ITEM_SIZE do
      replies[#replies + 1] = {text}
    end
  end
  if at <= #ARGV then
    is_read, run = pcall(plain_run, at)
  end
end
if sequence ~= "" and not (noted and as_given) then
  call("SET", ledger, as_given and sequence or cmsgpack.pack({sequence, replies}), "PX", ledger_ms)
end
return with_hashes(KEYS, ARGV, replies)
