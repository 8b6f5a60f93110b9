-- What the server says about the consumer group, by field; nil when there is no such group.
--@keys stream
--@args consumer_group
--@own named_fields named_fields
local groups = redis.pcall("XINFO", "GROUPS", stream)
for _, flat in ipairs(groups.err and {} or groups) do
  local info = named_fields(KEYS, ARGV, flat)
  if info["name"] == consumer_group then
    return info
  end
end
return nil
