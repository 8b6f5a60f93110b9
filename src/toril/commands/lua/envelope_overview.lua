--[[
  Everything that a monitor wants to know of a list or stream queue, of one moment and in one call. Changes nothing.

  KEYS   1 list or stream, 2 scheduled, 3 dlq, 4 totals, 5 workers, 6 consumers of a list
  ARGV   1 kind (list or stream), 2 group, 3 start of the queue's keys, 4 how many worker reports at most,
         5 the consumer of a stream that has what was given back
  Reply  { waiting, in hand, scheduled, dead, since when (ISO 8601 text, ms or "") the job waits that is taken next,
           id of the oldest dead letter or "", totals (flat), reports of workers, entries of the stream, consumers }
]]
--@own named_fields named_fields
local kind, group, base, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
-- The time stands at the end of an envelope, after the payload, which may be huge.
local TAIL = 2000

local waiting, active, since, entries, consumers = 0, 0, "", 0, 0

if kind == "list" then
  waiting = redis.call("LLEN", KEYS[1])
  local text = redis.call("LINDEX", KEYS[1], -1)
  since = text and string.match(string.sub(text, -TAIL), '.*"enqueue_ts":"([^"]*)"') or ""
  for _, consumer in ipairs(redis.call("ZRANGE", KEYS[6], 0, most - 1)) do
    active = active + redis.call("LLEN", base .. ":processing:" .. consumer)
    consumers = consumers + 1
  end
else
  entries = redis.call("XLEN", KEYS[1])
  local after = "-"
  local lag = entries
  local groups = redis.pcall("XINFO", "GROUPS", KEYS[1])
  for _, flat in ipairs(groups.err and {} or groups) do
    local info = named_fields(KEYS, ARGV, flat)
    if info["name"] == group then
      active, consumers = info["pending"], info["consumers"]
      after = "(" .. info["last-delivered-id"]
      lag = info["lag"]
    end
  end
  if entries > 0 then
    local first = redis.call("XRANGE", KEYS[1], after, "+", "COUNT", 1)[1]
    since = first and string.match(first[1], "^%d+") or ""
    -- A server that lost count says nothing; whether anything waits is known all the same.
    lag = lag or (first and 1 or 0)
  end
  waiting = lag or 0
  for _, flat in ipairs(active > 0 and redis.call("XINFO", "CONSUMERS", KEYS[1], group) or {}) do
    local info = named_fields(KEYS, ARGV, flat)
    if info["name"] == ARGV[5] then
      waiting, active, consumers = waiting + info["pending"], active - info["pending"], consumers - 1
    end
  end
end

local dead = redis.call("XRANGE", KEYS[3], "-", "+", "COUNT", 1)[1]

local reports = {}
for _, id in ipairs(redis.call("ZRANGE", KEYS[5], 0, most - 1)) do
  local report = redis.call("GET", base .. ":toril:worker:" .. id)
  if report then
    reports[#reports + 1] = report
  end
end

return {
  waiting, active, redis.call("ZCARD", KEYS[2]), redis.call("XLEN", KEYS[3]), since, dead and dead[1] or "",
  redis.call("HGETALL", KEYS[4]), reports, entries, consumers,
}
