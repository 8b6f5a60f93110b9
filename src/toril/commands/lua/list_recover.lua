--[[
  Puts back the jobs of workers that have not been seen for a while, where they are taken next, and counts the stall.

  Only for reliable pickup: each worker's jobs in hand stand in its own list. A worker that comes back later finds them
  gone, and its outcomes are refused.

  KEYS   1 list, 2 consumers, 3 totals, 4 stalls by job id
  ARGV   1 start of the workers' lists, 2 not seen since (ms), 3 how many jobs at most
  Reply  the envelopes that were put back
]]
local recovered = {}
local limit = tonumber(ARGV[3])

local function id_of(envelope)
  local id = string.match(envelope, '^%s*{%s*"job_id"%s*:%s*"([^"\\]+)"')
  if id then
    return id
  end
  local ok, fields = pcall(cjson.decode, envelope)
  return ok and type(fields) == "table" and type(fields.job_id) == "string" and fields.job_id or nil
end

for _, consumer in ipairs(redis.call("ZRANGEBYSCORE", KEYS[2], "-inf", ARGV[2], "LIMIT", 0, 100)) do
  local list = ARGV[1] .. consumer
  while #recovered < limit do
    local envelope = redis.call("LMOVE", list, KEYS[1], "LEFT", "RIGHT")
    if not envelope then
      redis.call("ZREM", KEYS[2], consumer)
      break
    end
    local id = id_of(envelope)
    if id then
      redis.call("HINCRBY", KEYS[4], id, 1)
    end
    recovered[#recovered + 1] = envelope
  end
end
if #recovered > 0 then
  redis.call("HINCRBY", KEYS[3], "stalled", #recovered)
end
return recovered
