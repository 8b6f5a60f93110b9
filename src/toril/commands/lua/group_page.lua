--[[
  Counts the jobs of groups in one part of a sorted set or of the active list, about `count` jobs at once. With `registers`
  the jobs that wait are entered into the sorted sets by which the maximum size of groups is checked
  (`parts/group_size.lua`).

  jobs       the sorted set or the list
  cursor     "0", or that of the last reply
  Reply      { the next cursor, "0" when this was the last part, group, jobs, how many of these are held, … }
]]
--@keys jobs
--@args base cursor count registers
local call = redis.call
local ids, next_cursor = {}, "0"
if call("TYPE", jobs).ok == "list" then
  local last = cursor + count
  ids = call("LRANGE", jobs, cursor, last - 1)
  next_cursor = #ids == tonumber(count) and string.format("%.0f", last) or "0"
else
  local page = call("ZSCAN", jobs, cursor, "COUNT", count)
  next_cursor = page[1]
  for at = 1, #page[2], 2 do
    ids[#ids + 1] = page[2][at]
  end
end
--@own group_of group_of

local all, held, names = {}, {}, {}
for _, id in ipairs(ids) do
  local name = group_of(KEYS, ARGV, id)
  if name then
    if not all[name] then
      names[#names + 1], all[name], held[name] = name, 0, 0
    end
    all[name] = all[name] + 1
    local score = call("ZSCORE", base .. "toril:group:held:" .. name, id)
    held[name] = held[name] + (score and 1 or 0)
    if registers == "1" then
      local priority = tonumber(call("HGET", base .. id, "priority")) or 0
      call("ZADD", base .. "toril:group:waiting:" .. name, "NX", priority, id)
    end
  end
end
local reply = {next_cursor}
for _, name in ipairs(names) do
  reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = name, all[name], held[name]
end
return reply
