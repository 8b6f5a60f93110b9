--[[
  Part of every script that is called under a number: runs the body once for each number, and remembers its reply.

  A client whose reply was lost sends the same call again: it gets the reply of the first run, and nothing is done a second
  time. Replies are kept in slots of one hash for each client: a call takes the place of an earlier one, which the client
  has had an answer to by then. A call that arrives after its slot went to a later one is refused: whether it ran is not
  known any more.

  KEYS   those of the body, then the hash
  ARGV   those of the body, then slot, number of the call, how long (ms) its reply is remembered
  ...    the body
]]
local body = ...
local life, number, slot = table.remove(ARGV), tonumber(table.remove(ARGV)), table.remove(ARGV)
local replies = table.remove(KEYS)

-- A note is the number of its call, a space, and the packed reply.
local note = redis.call("HGET", replies, slot)
if note then
  local space = string.find(note, " ", 1, true)
  local before = tonumber(string.sub(note, 1, space - 1))
  if before == number then
    return cmsgpack.unpack(string.sub(note, space + 1))
  elseif before > number then
    return redis.error_reply("ERR call " .. number .. " of this client is forgotten, a later one had its place")
  end
end

local reply = body(KEYS, ARGV)
if type(reply) == "table" and reply.err then
  return reply
end
-- A server without memory refuses this only when the body has written nothing: then it may run again.
local kept = redis.pcall("HSET", replies, slot, number .. " " .. cmsgpack.pack(reply))
if type(kept) == "number" then
  redis.call("PEXPIRE", replies, life)
end
return reply
