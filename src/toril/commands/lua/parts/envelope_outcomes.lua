--[[
  What becomes of envelopes, for list and stream queues alike.

  A settlement is six words: kind, job id, reference, fence, due (ms), text
    kind "done": let go; text = result to keep for due (ms), or ""
    kind "retry": text = envelope, due = when it runs again; "later": the same, but no attempt failed
    kind "again": text = envelope, back to where it is taken next
    kind "dead": text = dead letter
  Its code: 0 accepted, 1 accepted before, -2 nobody's, -6 another's, or the text of an error. A step that raises fails
  alone. What is written elsewhere is written before the job is let go: it is never in neither place.

  KEYS   2 scheduled, 3 dlq, 4 totals
  ...    the queue: hold(id, reference, fence), let_go(kind, id, reference, fence), add(envelope),
         give_back(envelope, reference, fence), and the start of its result keys
  Gives  { attempt, settle(first), move_due(now), next_due() }
]]
local queue = ...
-- Moves at most this many due jobs in one call: about a millisecond of the server's time.
local DUE_AT_ONCE = 500

local counted = {}
local function count(what)
  counted[what] = (counted[what] or 0) + 1
end

local function attempt(step, ...)
  local ok, reply = pcall(step, ...)
  if ok and type(reply) ~= "table" then
    return reply
  end
  return type(reply) == "table" and reply.err or tostring(reply)
end

local function settled(kind, id, reference, fence, due, text)
  local code = queue.hold(id, reference, fence)
  if code ~= 0 then
    return code
  end
  if kind == "retry" or kind == "later" then
    redis.call("ZADD", KEYS[2], due, text)
    if kind == "retry" then
      count("retried")
    end
  elseif kind == "again" then
    queue.give_back(text, reference, fence)
  elseif kind == "dead" then
    redis.call("XADD", KEYS[3], "*", "envelope", text)
    count("dead")
  else
    if text ~= "" then
      -- A server without memory keeps no result; the job is done all the same.
      redis.pcall("SET", queue.results .. id, text, "PX", due)
    end
    count("completed")
  end
  queue.let_go(kind, id, reference, fence)
  return 0
end

local function settle(first)
  local codes = {}
  for at = first, #ARGV, 6 do
    codes[#codes + 1] =
      attempt(settled, ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5])
  end
  for what, number in pairs(counted) do
    attempt(redis.call, "HINCRBY", KEYS[4], what, number)
  end
  return codes
end

local function move_due(now)
  local due = redis.call("ZRANGEBYSCORE", KEYS[2], "-inf", now, "LIMIT", 0, DUE_AT_ONCE)
  for _, envelope in ipairs(due) do
    queue.add(envelope)
    redis.call("ZREM", KEYS[2], envelope)
  end
  return 0
end

-- Jobs are in hand when this is asked: whatever is wrong with the sorted set must not keep them from their worker.
local function next_due()
  local first = redis.pcall("ZRANGE", KEYS[2], 0, 0, "WITHSCORES")
  return not first.err and first[2] or "-1"
end

return {attempt = attempt, settle = settle, move_due = move_due, next_due = next_due}
