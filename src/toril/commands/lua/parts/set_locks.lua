--[[
  Part of `settle_many.lua`: locks `count` jobs; `locks` holds { key, token, key, token, … }. Where the server has a command
  for several keys that expire, and the user may call it, that is one write instead of one for each job: Valkey since 9.1,
  Redis since 8.4. Not on a cluster, whose keys have hash tags: while Valkey migrates a slot (CLUSTER MIGRATESLOTS), keys
  that MSETEX sets do not always reach the new node.
]]
--@args token lock_ms
local count, locks = ...
local valkey = redis.VALKEY_VERSION_NUM or 0
local has_msetex = valkey >= 0x90100 or (valkey == 0 and (redis.REDIS_VERSION_NUM or 0) >= 0x80400)
local has_hash_tag = string.find(locks[1], "{", 1, true)
if
  has_msetex
  and count > 1
  and not has_hash_tag
  and redis.acl_check_cmd("MSETEX", "1", locks[1], token, "PX", lock_ms)
then
  locks[2 * count + 1], locks[2 * count + 2] = "PX", lock_ms
  redis.call("MSETEX", count, unpack(locks))
  return
end
for at = 1, 2 * count, 2 do
  redis.call("SET", locks[at], token, "PX", lock_ms)
end
