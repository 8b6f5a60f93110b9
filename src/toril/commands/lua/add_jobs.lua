--[[
  Adds a batch of jobs in order, each by the official body of its kind, and remembers the reply for a repeated call.

  A producer whose reply was lost sends the same call again under the same sequence number: it gets the first reply, and
  no job is added twice, not even one that was finished and removed meanwhile.

  KEYS   1 wait, 2 paused, 3 meta, 4 id, 5 completed, 6 delayed, 7 active, 8 events, 9 marker, 10 prioritized, 11 pc,
         12 waiting-children, 13 ledger
  ARGV   1 sequence number of the call ("" for no ledger), 2 ledger's life (ms), then four words for each job:
           kind (standard | delayed | prioritized | parent), packed arguments, data, packed options
  Reply  for each job its id, a negative code, or { error text }; an error when the server takes no writes at all, which
         it says before the first write
]]
--@official standard addStandardJob
--@official delayed addDelayedJob
--@official prioritized addPrioritizedJob
--@official parent addParentJob

local sequence, life = ARGV[1], ARGV[2]
if sequence ~= "" then
  local known = redis.call("GET", KEYS[13])
  if known then
    local entry = cmsgpack.unpack(known)
    if entry[1] == sequence then
      return entry[2]
    end
  end
end

local bodies = {
  standard = {standard, {KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]}},
  delayed = {delayed, {KEYS[9], KEYS[3], KEYS[4], KEYS[6], KEYS[5], KEYS[8]}},
  prioritized = {prioritized, {KEYS[9], KEYS[3], KEYS[4], KEYS[10], KEYS[6], KEYS[5], KEYS[7], KEYS[8], KEYS[11]}},
  parent = {parent, {KEYS[3], KEYS[4], KEYS[6], KEYS[12], KEYS[5], KEYS[8]}},
}

local replies = {}
for at = 3, #ARGV, 4 do
  local body = bodies[ARGV[at]]
  local ok, reply = pcall(body[1], body[2], {ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]})
  if not ok then
    local text = type(reply) == "table" and reply.err or tostring(reply)
    for _, words in ipairs({"READONLY You", "OOM command", "MISCONF ", "NOREPLICAS "}) do
      local from = string.find(text, words, 1, true)
      if from then
        return {err = string.sub(text, from)}
      end
    end
    reply = {text}
  end
  replies[#replies + 1] = reply
end
if sequence ~= "" then
  redis.call("SET", KEYS[13], cmsgpack.pack({sequence, replies}), "PX", life)
end
return replies
