--[[
  Settles jobs by `settle`, and adds the result of each completed one to another queue as a job, in the same call: a result
  is added if and only if its job completed by this call.

  The keys of the other queue are checked before anything is written. If one of them has the wrong type, the jobs whose
  results should go there are not completed: they run again after a pause, and no attempt is counted.

  wait …     the keys of the other queue, as `add_jobs` takes them, behind the keys of `settle`
  count      the last argument: how many results there are. Before it, behind the arguments of `settle`, are for each
             result the number of its settlement, kind, arguments and options, as `add_jobs` takes them; its data is the
             value of the settlement
  ...        the scripts `settle` and `add_jobs`
  Reply      that of `settle`; the code of a job whose result could not be added is the text of the error
]]
--@last_keys wait paused meta id_counter completed delayed active events marker prioritized pc waiting_children ledger
--@last_args count
--@each job_id kind token value options fields
--@own error_text error_text
local settle, add_jobs = ...
-- A pause before a job runs again whose result had nowhere to go.
local PAUSE_MS = 5000
-- `add_jobs` takes no number and no time for a reply that is not remembered.
local NO_LEDGER = {"", 0}

local entries = {}
for number = tonumber(count), 1, -1 do
  local options, arguments, kind = table.remove(ARGV), table.remove(ARGV), table.remove(ARGV)
  entries[number] = {tonumber(table.remove(ARGV)), kind, arguments, options}
end

local function wrong_type()
  local expected = {
    {wait, "list"}, {paused, "list"}, {meta, "hash"}, {id_counter, "string"}, {completed, "zset"}, {delayed, "zset"},
    {active, "list"}, {events, "stream"}, {marker, "zset"}, {prioritized, "zset"}, {pc, "string"},
  }
  for _, one in ipairs(expected) do
    local found = redis.call("TYPE", one[1]).ok
    if found ~= "none" and found ~= one[2] then
      return "the result cannot be added: " .. one[1] .. " is a " .. found
    end
  end
end

local problem = wrong_type()
if problem then
  for _, entry in ipairs(entries) do
    local at = FIRST_ITEM + ITEM_SIZE * (entry[1] - 1)
    ARGV[at + KIND], ARGV[at + VALUE], ARGV[at + OPTIONS] = "delayed", PAUSE_MS, "1"
    ARGV[at + FIELDS] = cmsgpack.pack({"failedReason", problem})
  end
end

local reply = settle(KEYS, ARGV)
if reply.err then
  return reply
end

local codes = reply[1]
local function set_code(place, text)
  if codes == 0 then
    codes = {}
    for number = 1, (#ARGV - FIRST_ITEM + 1) / ITEM_SIZE do
      codes[number] = 0
    end
    reply[1] = codes
  end
  codes[place] = text
end

local added, args = {}, {unpack(NO_LEDGER)}
for _, entry in ipairs(entries) do
  local place = entry[1]
  if codes == 0 or codes[place] == 0 then
    if problem then
      set_code(place, problem)
    else
      added[#added + 1] = place
      args[#args + 1], args[#args + 2] = entry[2], entry[3]
      args[#args + 1], args[#args + 2] = ARGV[FIRST_ITEM + ITEM_SIZE * (place - 1) + VALUE], entry[4]
    end
  end
end
if #added > 0 then
  local keys = {wait, paused, meta, id_counter, completed, delayed, active, events, marker, prioritized, pc,
    waiting_children, ledger}
  local ok, replies = pcall(add_jobs, keys, args)
  if not ok then
    replies = {err = error_text(KEYS, ARGV, replies)}
  end
  for number, place in ipairs(added) do
    local one = replies[number]
    if type(one) ~= "string" then
      local text = replies.err or tostring(type(one) == "table" and one[1] or one)
      set_code(place, "the result was not added: " .. text)
    end
  end
end
return reply
