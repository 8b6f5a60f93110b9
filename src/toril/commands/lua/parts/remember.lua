--[[
  Part of every script that is called under a number: runs the script once for each number, and remembers its reply.

  A client whose reply was lost sends the same call again: it gets the reply of the first run, and nothing is done a
  second time. Replies are kept in slots of one hash for each client: a call replaces an earlier one, whose reply the client has
  received by then. A call whose slot holds a later one is refused: whether it ran is not known any more.

  replies   the hash, behind the keys of the script
  slot …    behind the arguments of the script: the slot, the number of the call, how long its reply is remembered
  ...       the script
]]
--@last_keys replies
--@last_args slot number reply_ms
local script = ...
local call_number = tonumber(number)

-- A note is the number of its call, a space, and the packed reply.
local note = redis.call("HGET", replies, slot)
if note then
  local space = string.find(note, " ", 1, true)
  local before = tonumber(string.sub(note, 1, space - 1))
  if before == call_number then
    return cmsgpack.unpack(string.sub(note, space + 1))
  elseif before > call_number then
    return redis.error_reply("ERR call " .. call_number .. " of this client is forgotten, a later one had its place")
  end
end

local reply = script(KEYS, ARGV)
if type(reply) == "table" and reply.err then
  return reply
end
-- A server without memory refuses this only when the script has written nothing: then it may run again.
local kept = redis.pcall("HSET", replies, slot, call_number .. " " .. cmsgpack.pack(reply))
if type(kept) == "number" then
  redis.call("PEXPIRE", replies, reply_ms)
end
return reply
