--[[
  Everything that a monitor wants to know of a BullMQ queue, of one moment and in one call. Changes nothing.

  KEYS   1 wait, 2 paused, 3 active, 4 prioritized, 5 delayed, 6 completed, 7 failed, 8 waiting-children, 9 meta,
         10 workers, 11 broken schedulers
  ARGV   1 start of the queue's keys, 2 how many worker reports at most
  Reply  { the lengths of 1 … 8, is paused (0 or 1), version, ready since (ms) of the job that is taken next or -1,
           end (ms) of the oldest failed job or -1, reports of workers, number of broken schedulers }
]]
local base = ARGV[1]

-- Old versions left markers such as "0:1700000000000" among the waiting jobs.
local function next_of(list)
  local id = redis.call("LINDEX", list, -1)
  if id and string.sub(id, 1, 2) == "0:" then
    id = redis.call("LINDEX", list, -2)
  end
  return id
end

local function ready_since(id)
  local at = redis.call("HMGET", base .. id, "timestamp", "delay")
  local added = tonumber(at[1] or "")
  return added and added + (tonumber(at[2] or "") or 0) or -1
end

local waiting = next_of(KEYS[1]) or next_of(KEYS[2]) or redis.call("ZRANGE", KEYS[4], 0, 0)[1]
local failed = redis.call("ZRANGE", KEYS[7], 0, 0, "WITHSCORES")
local meta = redis.call("HMGET", KEYS[9], "paused", "version")

local reports = {}
for _, id in ipairs(redis.call("ZRANGE", KEYS[10], 0, ARGV[2] - 1)) do
  local report = redis.call("GET", base .. "toril:worker:" .. id)
  if report then
    reports[#reports + 1] = report
  end
end

return {
  redis.call("LLEN", KEYS[1]), redis.call("LLEN", KEYS[2]), redis.call("LLEN", KEYS[3]),
  redis.call("ZCARD", KEYS[4]), redis.call("ZCARD", KEYS[5]), redis.call("ZCARD", KEYS[6]),
  redis.call("ZCARD", KEYS[7]), redis.call("ZCARD", KEYS[8]),
  meta[1] and 1 or 0, meta[2] or "",
  waiting and ready_since(waiting) or -1,
  tonumber(failed[2]) or -1,
  reports,
  redis.call("HLEN", KEYS[11]),
}
