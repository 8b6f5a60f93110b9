--[[
  Reads the figures of a list or stream queue that monitoring needs, of one moment and in one call. Changes nothing.

  jobs               the list or stream
  list_consumers     consumers of a list with reliable pickup
  kind               list or stream
  base               start of the queue's keys
  max_reports        how many worker reports at most
  returned_consumer  the consumer of a stream that holds the entries that were given back
  Reply              { waiting, active, scheduled, dead, since when (ISO 8601 text, ms or "") the job waits that is
                       fetched next, id of the oldest dead letter or "", totals (flat), worker reports, entries of the
                       stream, consumers, number of running workers }
]]
--@keys jobs scheduled dlq totals workers list_consumers
--@args kind consumer_group base max_reports returned_consumer
--@own named_fields named_fields
--@own worker_reports worker_reports
-- The time is at the end of an envelope, after the payload, which may be huge.
local TAIL = 2000
local MOST_CONSUMERS = 1000

local waiting, active, since, entries, consumers = 0, 0, "", 0, 0

if kind == "list" then
  waiting = redis.call("LLEN", jobs)
  local text = redis.call("LINDEX", jobs, -1)
  since = text and string.match(string.sub(text, -TAIL), '.*"enqueue_ts":"([^"]*)"') or ""
  for _, consumer in ipairs(redis.call("ZRANGE", list_consumers, 0, MOST_CONSUMERS - 1)) do
    active = active + redis.call("LLEN", base .. ":processing:" .. consumer)
    consumers = consumers + 1
  end
else
  entries = redis.call("XLEN", jobs)
  local after = "-"
  local lag = entries
  local groups = redis.pcall("XINFO", "GROUPS", jobs)
  for _, flat in ipairs(groups.err and {} or groups) do
    local info = named_fields(KEYS, ARGV, flat)
    if info["name"] == consumer_group then
      active, consumers = info["pending"], info["consumers"]
      after = "(" .. info["last-delivered-id"]
      lag = info["lag"]
    end
  end
  if entries > 0 then
    local first = redis.call("XRANGE", jobs, after, "+", "COUNT", 1)[1]
    since = first and string.match(first[1], "^%d+") or ""
    -- A server that lost count returns no lag; whether anything waits is known all the same.
    lag = lag or (first and 1 or 0)
  end
  waiting = lag or 0
  for _, flat in ipairs(active > 0 and redis.call("XINFO", "CONSUMERS", jobs, consumer_group) or {}) do
    local info = named_fields(KEYS, ARGV, flat)
    if info["name"] == returned_consumer then
      waiting, active, consumers = waiting + info["pending"], active - info["pending"], consumers - 1
    end
  end
end

local oldest_dead = redis.call("XRANGE", dlq, "-", "+", "COUNT", 1)[1]

local reports, running = worker_reports(KEYS, ARGV, workers, base .. ":toril:worker:", tonumber(max_reports))

return {
  waiting, active, redis.call("ZCARD", scheduled), redis.call("XLEN", dlq), since, oldest_dead and oldest_dead[1] or "",
  redis.call("HGETALL", totals), reports, entries, consumers,
  running,
}
