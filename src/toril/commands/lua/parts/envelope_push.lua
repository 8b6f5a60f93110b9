-- Adds an envelope to a list or a stream; one that is due later (due ~= "", in ms) to the sorted set.
local kind, jobs, scheduled, due, envelope = ...
if due ~= "" then
  redis.call("ZADD", scheduled, due, envelope)
elseif kind == "stream" then
  redis.call("XADD", jobs, "*", "envelope", envelope)
else
  redis.call("LPUSH", jobs, envelope)
end
