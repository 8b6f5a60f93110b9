--[[
  Closes a lease: it is no longer renewed, and whoever asks for it again gets no job. It must hold no job any more.

  lease_ms  how long it is remembered that the lease was there
]]
--@keys lease leases
--@args lease_name lease_ms
redis.call("LTRIM", lease, 0, 0)
redis.call("PEXPIRE", lease, lease_ms)
return redis.call("ZREM", leases, lease_name)
