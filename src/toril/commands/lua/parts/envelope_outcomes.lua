--[[
  Part of `list_settle.lua` and `stream_settle.lua`: writes the outcomes of envelopes.

  A settlement:
    kind "done": release; text = result to keep for due_ms, or ""
    kind "retry": text = envelope, due_ms = when it runs again; "later": the same, but no attempt failed
    kind "again": text = envelope, back to where it is fetched next
    kind "dead": text = dead letter
  Its code: 0 accepted, 1 accepted before, -2 no worker has the job, -6 another worker has it, or the text of an error. A
  settlement that raises fails alone. The new place of a job is written before the job is released: it is always in one
  of the two places.

  ...      the queue: check_owner(id, reference, fence), release(kind, id, reference, fence), add(envelope),
           give_back(envelope, reference, fence)
  Returns  { attempt, settle(), move_due(now_ms), next_due() }
]]
--@keys scheduled dlq totals
--@args result_base
--@each kind job_id reference fence due_ms text
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

local function settle_one(kind, id, reference, fence, due, text)
  local code = queue.check_owner(id, reference, fence)
  if code ~= 0 then
    return code
  end
  if kind == "retry" or kind == "later" then
    redis.call("ZADD", scheduled, due, text)
    if kind == "retry" then
      count("retried")
    end
  elseif kind == "again" then
    queue.give_back(text, reference, fence)
  elseif kind == "dead" then
    redis.call("XADD", dlq, "*", "envelope", text)
    count("dead")
  else
    if text ~= "" then
      -- A server without memory keeps no result; the job is done all the same.
      redis.pcall("SET", result_base .. id, text, "PX", due)
    end
    count("completed")
  end
  queue.release(kind, id, reference, fence)
  return 0
end

local function settle()
  local codes = {}
  for at = FIRST_ITEM, #ARGV, ITEM_SIZE do
    codes[#codes + 1] = attempt(settle_one, ARGV[at + KIND], ARGV[at + JOB_ID], ARGV[at + REFERENCE], ARGV[at + FENCE],
      ARGV[at + DUE_MS], ARGV[at + TEXT])
  end
  for what, number in pairs(counted) do
    attempt(redis.call, "HINCRBY", totals, what, number)
  end
  return codes
end

local function move_due(now_ms)
  local due = redis.call("ZRANGEBYSCORE", scheduled, "-inf", now_ms, "LIMIT", 0, DUE_AT_ONCE)
  for _, envelope in ipairs(due) do
    queue.add(envelope)
    redis.call("ZREM", scheduled, envelope)
  end
  return 0
end

-- Jobs have been fetched when this is called: an error of the sorted set must not keep them from their worker.
local function next_due()
  local first = redis.pcall("ZRANGE", scheduled, 0, 0, "WITHSCORES")
  return not first.err and first[2] or "-1"
end

return {attempt = attempt, settle = settle, move_due = move_due, next_due = next_due}
