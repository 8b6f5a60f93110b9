--[[
  Reads the figures of a BullMQ queue that monitoring needs, of one moment and in one call. Changes nothing.

  base         start of the queue's keys
  max_reports  how many worker reports at most
  Reply        { the lengths of the first eight keys, is paused (0 or 1), version, ready since (ms) of the job that is
                 fetched next or -1, end (ms) of the oldest failed job or -1, worker reports, number of broken schedulers,
                 number of running workers }
]]
--@keys wait paused active prioritized delayed completed failed waiting_children meta workers broken_schedulers
--@args base max_reports
--@own worker_reports worker_reports

-- BullMQ before version 5 put markers such as "0:1700000000000" among the waiting jobs.
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

local next_id = next_of(wait) or next_of(paused) or redis.call("ZRANGE", prioritized, 0, 0)[1]
local oldest_failed = redis.call("ZRANGE", failed, 0, 0, "WITHSCORES")
local settings = redis.call("HMGET", meta, "paused", "version")

local reports, running = worker_reports(KEYS, ARGV, workers, base .. "toril:worker:", tonumber(max_reports))

return {
  redis.call("LLEN", wait), redis.call("LLEN", paused), redis.call("LLEN", active),
  redis.call("ZCARD", prioritized), redis.call("ZCARD", delayed), redis.call("ZCARD", completed),
  redis.call("ZCARD", failed), redis.call("ZCARD", waiting_children),
  settings[1] and 1 or 0, settings[2] or "",
  next_id and ready_since(next_id) or -1,
  tonumber(oldest_failed[2]) or -1,
  reports,
  redis.call("HLEN", broken_schedulers),
  running,
}
