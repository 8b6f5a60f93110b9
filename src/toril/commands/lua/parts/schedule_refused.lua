--[[
  Schedules those jobs that a function refuses. Nothing is written before all are read.

  ...      jobs, a function that takes one and returns its name, new text and delay (ms); nothing when it stays
  Returns  the set of places of the refused ones, the last of them (0: there is none), and the reply of the script:
           { how many were examined, name, how many of it were refused, … }
]]
--@keys scheduled
--@args now_ms
local jobs, refuse = ...
local now, refused, last, counts, texts, members = tonumber(now_ms), nil, nil, nil, nil, nil

-- A sorted set holds only one of two copies of a job: `is_there` has the texts that must not be added to it.
local function choose(is_there)
  refused, last, counts, texts, members = {}, 0, {}, {}, {}
  for at = 1, #jobs do
    local name, text, delay = refuse(jobs[at])
    if name and not is_there[text] then
      is_there[text], refused[at], last = true, true, at
      texts[#texts + 1] = text
      members[#members + 1] = now + delay
      members[#members + 1] = text
      counts[name] = (counts[name] or 0) + 1
    end
  end
end

choose({})
local scheduled_before, has_copies = {}, false
for at, score in ipairs(last > 0 and redis.call("ZMSCORE", scheduled, unpack(texts)) or {}) do
  if score then
    scheduled_before[texts[at]], has_copies = true, true
  end
end
if has_copies then
  choose(scheduled_before)
end
if last > 0 then
  redis.call("ZADD", scheduled, unpack(members))
end

local reply = {#jobs}
for name, count in pairs(counts) do
  reply[#reply + 1], reply[#reply + 2] = name, count
end
return refused, last, reply
