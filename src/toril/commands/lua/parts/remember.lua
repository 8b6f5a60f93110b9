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

local packed = redis.call("HGET", replies, slot)
local known = packed and cmsgpack.unpack(packed)
if known and known[1] == number then
  return known[2]
elseif known and known[1] > number then
  return redis.error_reply("ERR call " .. number .. " of this client is forgotten, a later one had its place")
end

local reply = body(KEYS, ARGV)
if type(reply) == "table" and reply.err then
  return reply
end
-- A server without memory refuses this only when the body has written nothing: then it may run again.
local kept = redis.pcall("HSET", replies, slot, cmsgpack.pack({number, reply}))
if type(kept) == "number" then
  redis.call("PEXPIRE", replies, life)
end
return reply
