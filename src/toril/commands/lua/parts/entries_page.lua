--[[
  A page of a stream that is not too large, whatever an entry weighs.

  ...    stream, command (XRANGE or XREVRANGE), first and last id as it takes them, how many entries at most, how many bytes at
         most (one entry is always given)
  Gives  entries, whether there may be more
]]
local stream, command, from, to, most, bytes = ...
local entries, weight, step = {}, 0, 1
while #entries < most and (weight < bytes or #entries == 0) do
  local asked = math.min(step, most - #entries)
  local page = redis.call(command, stream, from, to, "COUNT", asked)
  for _, entry in ipairs(page) do
    entries[#entries + 1] = entry
    for _, word in ipairs(entry[2]) do
      weight = weight + #word
    end
  end
  if #page < asked then
    return entries, false
  end
  from = "(" .. page[#page][1]
  -- As many as the rest has space for, if they are like those before.
  step = math.max(1, math.min(2 * step, math.floor((bytes - weight) * #entries / math.max(weight, 1))))
end
return entries, true
