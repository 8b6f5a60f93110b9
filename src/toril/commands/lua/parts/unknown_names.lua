--[[
  Decides which names of jobs no worker has a handler for, and how long a job of such a name is delayed.

  announced  the names of jobs that live workers have handlers for, with the times until which they count
  known      the names of jobs that this worker has handlers for
  factor     of the delays, a random number around 1
  first_ms, longest_ms, give_up_ms  the first and the longest delay; how long a job is refused
  Returns    { is_known, refuse }
               is_known: a set of names; "*" is in it when a live worker has a handler for all
               refuse(count, first): takes a job's refusals up to now and the time of the first one (nil: none), and
               returns both with this refusal, and the delay (ms); nothing when the job was refused for too long
]]
--@keys announced
--@args now_ms factor first_ms longest_ms give_up_ms
--@each known
local now, random, shortest = tonumber(now_ms), tonumber(factor), tonumber(first_ms)
local longest, give_up = tonumber(longest_ms), tonumber(give_up_ms)

local is_known = {}
for at = FIRST_ITEM, #ARGV, ITEM_SIZE do
  is_known[ARGV[at + KNOWN]] = true
end
for _, name in ipairs(redis.call("ZRANGEBYSCORE", announced, now_ms, "+inf")) do
  is_known[name] = true
end

local function refuse(count, first)
  if not first then
    count, first = 0, now
  end
  if now - first >= give_up then
    return
  end
  local delay = math.min(shortest * 2 ^ math.min(count, 50), longest)
  return count + 1, math.min(first, now), math.floor(delay * random + 0.5)
end

return {is_known = is_known, refuse = refuse}
