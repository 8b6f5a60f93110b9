--[[
  Reads the reports of the workers of a queue.

  ...      the sorted set of workers, start of the keys of their reports, how many reports at most
  Returns  reports, number of workers that run: those that have a report and did not stop
]]
local workers, start, most = ...
-- More workers are monitored by their own metrics.
local MOST_COUNTED = 1000
local reports, running = {}, 0
for _, id in ipairs(redis.call("ZRANGE", workers, 0, MOST_COUNTED - 1)) do
  local report = redis.call("GET", start .. id)
  if report then
    if #reports < most then
      reports[#reports + 1] = report
    end
    if not string.find(report, '"state":"stopped"', 1, true) then
      running = running + 1
    end
  end
end
return reports, running
