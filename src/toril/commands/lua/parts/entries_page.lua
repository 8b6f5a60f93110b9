--[[
  Reads a page of a stream of bounded size, whatever the size of an entry.

  ...      stream, command (XRANGE or XREVRANGE), first and last id as it takes them, how many entries at most, how many
           bytes at most (one entry is always returned)
  Returns  entries, whether there may be more
]]
local stream, command, from, to, limit, max_bytes = ...
local entries, size, step = {}, 0, 1
while #entries < limit and (size < max_bytes or #entries == 0) do
  local asked = math.min(step, limit - #entries)
  local page = redis.call(command, stream, from, to, "COUNT", asked)
  for at = 1, #page do
    local fields = page[at][2]
    entries[#entries + 1] = page[at]
    for place = 1, #fields do
      size = size + #fields[place]
    end
  end
  if #page < asked then
    return entries, false
  end
  from = "(" .. page[#page][1]
  -- As many as the remaining bytes allow, if they are as large as those before.
  step = math.max(1, math.min(2 * step, math.floor((max_bytes - size) * #entries / math.max(size, 1))))
end
return entries, true
