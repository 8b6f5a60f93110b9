--[[
  Reads a page of the jobs of one state, of bounded size whatever the size of a job. Changes nothing.

  state                       the list or sorted set of ids
  base                        start of the queue's keys
  kind                        list or set
  newest                      "1" for the newest first
  place, last_id, last_score  the position after which the page begins: 0, "" and "" for the first page
  limit                       how many jobs
  longest                     the length of a value that is read; of a longer one the length is returned
  max_bytes                   the size of all values
  each: field                 a field of the hashes
  Reply                       { number of jobs of the state, place of the first job,
                                { { id, score or "", values of the fields } … } }
]]
--@keys state
--@args base kind newest place last_id last_score limit longest max_bytes
--@each field
--@own state_window state_window
--@own job_row job_row
local is_list = kind == "list"
local ids, scores, first = state_window(
  KEYS, ARGV, state, is_list, newest == "1", tonumber(place), last_id, last_score, tonumber(limit)
)
local names = {}
for at = FIRST_ITEM, #ARGV do
  names[#names + 1] = ARGV[at]
end
local rows, left = {}, tonumber(max_bytes)
for at, id in ipairs(ids) do
  local values, read = job_row(KEYS, ARGV, base .. id, names, tonumber(longest), left)
  left = left - read
  rows[at] = {id, scores[at] or "", values}
end
return {redis.call(is_list and "LLEN" or "ZCARD", state), first, rows}
