--[[
  Removes jobs that nobody has taken yet, in bounded steps; those in a worker's hand stay.

  The group moves past what is removed, so that its lag stays exact.

  KEYS   1 list or stream
  ARGV   1 kind (list | stream), 2 most jobs to remove, 3 group
  Reply  how many were removed; 0 when nothing waits
]]
local most = tonumber(ARGV[2])
if ARGV[1] == "list" then
  local waiting = redis.call("LLEN", KEYS[1])
  -- The right end is taken first, so it goes first.
  redis.call("LTRIM", KEYS[1], 0, -(math.min(most, waiting) + 1))
  return math.min(most, waiting)
end

local after, read
local groups = redis.pcall("XINFO", "GROUPS", KEYS[1])
if groups.err then
  return 0
end
for _, flat in ipairs(groups) do
  local info = {}
  for i = 1, #flat, 2 do
    info[flat[i]] = flat[i + 1]
  end
  if info["name"] == ARGV[3] then
    after, read = info["last-delivered-id"], info["entries-read"]
  end
end

local page = redis.call("XRANGE", KEYS[1], after and "(" .. after or "-", "+", "COUNT", most)
if #page == 0 then
  return 0
end
local ids = {}
for at, entry in ipairs(page) do
  ids[at] = entry[1]
end
redis.call("XDEL", KEYS[1], unpack(ids))
if after and read then
  redis.call("XGROUP", "SETID", KEYS[1], ARGV[3], ids[#ids], "ENTRIESREAD", read + #ids)
elseif after then
  redis.call("XGROUP", "SETID", KEYS[1], ARGV[3], ids[#ids])
end
return #page
