--[[
  Searches one window of the jobs of a state, of bounded size. Changes nothing.

  state                       the list or sorted set of ids
  base                        start of the queue's keys
  kind                        list or set
  newest                      "1" for the newest first
  place, last_id, last_score  the position after which the window begins: 0, "" and "" for the first
  limit                       how many jobs are examined at most
  longest                     the length of a value that is read; jobs with a longer one are returned as large
  max_bytes                   the size of the values that are read; one job is always examined
  max_found                   the window ends after as many matches
  needle                      a part of the id or of a field, in lower case (ASCII); "" for any
  name                        the name of the job; "" for any
  time_field                  a field with a time (or "score")
  since_ms, until_ms          the earliest and the latest time; 0 for any
  each: field                 a field that is searched
  Reply                       { number of jobs of the state, place of the first, examined, id of the last, its score,
                                ids of matches, ids of large jobs }
]]
--@keys state
--@args base kind newest place last_id last_score limit longest max_bytes max_found needle name time_field since_ms until_ms
--@each field
--@own state_window state_window
--@own job_row job_row
local is_list, earliest, latest = kind == "list", tonumber(since_ms), tonumber(until_ms)
local ids, scores, first = state_window(
  KEYS, ARGV, state, is_list, newest == "1", tonumber(place), last_id, last_score, tonumber(limit)
)
local names = {}
for at = FIRST_ITEM, #ARGV do
  names[#names + 1] = ARGV[at]
end

local function has_needle(text)
  return string.find(string.lower(text), needle, 1, true) ~= nil
end

local function is_meant(hash, at)
  if name ~= "" and (redis.call("HSTRLEN", hash, "name") ~= #name or redis.call("HGET", hash, "name") ~= name) then
    return false
  end
  if earliest > 0 or latest > 0 then
    local moment = time_field == "score" and scores[at] or redis.call("HGET", hash, time_field)
    moment = tonumber(moment or "") or 0
    return moment >= earliest and (latest == 0 or moment <= latest)
  end
  return true
end

local found, large, size, examined = {}, {}, 0, 0
for at, id in ipairs(ids) do
  local hash = base .. id
  if is_meant(hash, at) then
    local matches, too_long = needle == "" or has_needle(id), false
    if not matches then
      local values, read = job_row(KEYS, ARGV, hash, names, tonumber(longest), math.huge)
      size = size + read
      for _, value in ipairs(values) do
        if type(value) == "number" then
          too_long = true
        elseif value and has_needle(value) then
          matches = true
        end
      end
    end
    if matches then
      found[#found + 1] = id
    elseif too_long then
      large[#large + 1] = id
    end
  end
  examined = at
  if #found + #large >= tonumber(max_found) or size >= tonumber(max_bytes) then
    break
  end
end
return {
  redis.call(is_list and "LLEN" or "ZCARD", state), first, examined, ids[examined] or "", scores[examined] or "",
  found, large,
}
