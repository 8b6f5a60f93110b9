--[[
  Adds a whole family of jobs at once, parents before their children, each by the official body of its kind.

  Nobody sees a parent without its children: the call is one step of the server. A repeated call under the same sequence
  number gets the first reply and adds nothing.

  KEYS   1 ledger, then twelve keys for each queue: wait, paused, meta, id, completed, delayed, active, events, marker,
         prioritized, pc, waiting-children
  ARGV   1 sequence number of the call, 2 ledger's life (ms), then five words for each job:
           number of its queue, kind (standard | delayed | prioritized | parent), packed arguments, data, packed options
  Reply  for each job its id, a negative code, or { error text }
]]
--@official standard addStandardJob
--@official delayed addDelayedJob
--@official prioritized addPrioritizedJob
--@official parent addParentJob

local sequence, life = ARGV[1], ARGV[2]
local known = redis.call("GET", KEYS[1])
if known then
  local entry = cmsgpack.unpack(known)
  if entry[1] == sequence then
    return entry[2]
  end
end

-- Which of a queue's twelve keys each body takes, in its order.
local bodies = {
  standard = {standard, {1, 2, 3, 4, 5, 6, 7, 8, 9}},
  delayed = {delayed, {9, 3, 4, 6, 5, 8}},
  prioritized = {prioritized, {9, 3, 4, 10, 6, 5, 7, 8, 11}},
  parent = {parent, {3, 4, 6, 12, 5, 8}},
}

local replies = {}
for at = 3, #ARGV, 5 do
  local first = 1 + (tonumber(ARGV[at]) - 1) * 12
  local body = bodies[ARGV[at + 1]]
  local keys = {}
  for i, number in ipairs(body[2]) do
    keys[i] = KEYS[first + number]
  end
  local ok, reply = pcall(body[1], keys, {ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]})
  if not ok then
    reply = {type(reply) == "table" and reply.err or tostring(reply)}
  end
  replies[#replies + 1] = reply
end
redis.call("SET", KEYS[1], cmsgpack.pack({sequence, replies}), "PX", life)
return replies
