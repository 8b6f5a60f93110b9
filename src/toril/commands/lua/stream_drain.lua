--[[
  Removes a bounded number of the entries that nobody had taken when the drain began; those in a worker's hand stay.

  The group moves past what is removed, so that its lag stays exact.

  KEYS   1 stream
  ARGV   1 group, 2 how many entries at most, 3 how many bytes at most (one entry is always removed), 4 the last entry
         when the drain began, "" in the first call, 5 the consumer that has what was given back
  Reply  { how many were removed, the last entry when the drain began, or "" at the end }
]]
--@own named_fields named_fields
--@own entries_page entries_page
local function group_info()
  local groups = redis.pcall("XINFO", "GROUPS", KEYS[1])
  for _, flat in ipairs(groups.err and {} or groups) do
    local info = named_fields(KEYS, ARGV, flat)
    if info["name"] == ARGV[1] then
      return info
    end
  end
end

local function last_entry()
  local last = redis.call("XREVRANGE", KEYS[1], "+", "-", "COUNT", 1)[1]
  return last and last[1]
end

local last = ARGV[4] ~= "" and ARGV[4] or last_entry()
if not last then
  return {0, ""}
end
local info = group_info()

-- What a worker gave back waits as well. It is removed first, and the drain goes on.
local returned = info and redis.call("XPENDING", KEYS[1], ARGV[1], "-", last, ARGV[2], ARGV[5]) or {}
if #returned > 0 then
  for _, one in ipairs(returned) do
    redis.call("XACK", KEYS[1], ARGV[1], one[1])
    redis.call("XDEL", KEYS[1], one[1])
  end
  return {#returned, last}
end

local after = info and info["last-delivered-id"]
local from = after and "(" .. after or "-"
local page, more = entries_page(KEYS, ARGV, KEYS[1], "XRANGE", from, last, tonumber(ARGV[2]), tonumber(ARGV[3]))
if #page == 0 then
  return {0, ""}
end
local ids = {}
for at, entry in ipairs(page) do
  ids[at] = entry[1]
end
redis.call("XDEL", KEYS[1], unpack(ids))
if after and info["entries-read"] then
  redis.call("XGROUP", "SETID", KEYS[1], ARGV[1], ids[#ids], "ENTRIESREAD", info["entries-read"] + #ids)
elseif after then
  redis.call("XGROUP", "SETID", KEYS[1], ARGV[1], ids[#ids])
end
return {#ids, more and last or ""}
