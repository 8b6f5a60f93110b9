--[[
  Reads the tree of a job and its children, of bounded size, level by level. Changes nothing. Children may be in other
  queues: BullMQ's own scripts need all keys of a flow in one slot, too.

  root          the hash of the job at the top
  max_depth     how many levels are read
  max_children  how many children of each kind are read of one job
  max_nodes     how many jobs are read at most
  longest       a longer error is not read
  Reply         { { key, place of its parent in this list or 0, name, error, waiting, processed, failed, ignored } … }: how many
                children wait, were processed, failed, and failed without effect
]]
--@keys root
--@args max_depth max_children max_nodes longest
local most_children, most_nodes, most_bytes = tonumber(max_children), tonumber(max_nodes), tonumber(longest)

local function text_of(job, field)
  if redis.call("HSTRLEN", job, field) > most_bytes then
    return ""
  end
  return redis.call("HGET", job, field) or ""
end

-- The fields of a hash, without their values, which are as large as results are.
local function some_fields(hash, total)
  if total <= most_children then
    return redis.call("HKEYS", hash)
  end
  local pairs_of_hash, fields = redis.call("HSCAN", hash, "0", "COUNT", most_children)[2], {}
  for at = 1, #pairs_of_hash, 2 do
    fields[#fields + 1] = pairs_of_hash[at]
  end
  return fields
end

local nodes = {{root, 0, "", "", 0, 0, 0, 0}}

local function add_children(keys, parent)
  for at = 1, math.min(#keys, most_children) do
    if #nodes < most_nodes then
      nodes[#nodes + 1] = {keys[at], parent, "", "", 0, 0, 0, 0}
    end
  end
end

local place, level_end, depth = 1, 1, 1
while place <= #nodes do
  local node = nodes[place]
  local job = node[1]
  node[3], node[4] = text_of(job, "name"), text_of(job, "failedReason")
  local waiting, processed, failed, ignored =
    job .. ":dependencies", job .. ":processed", job .. ":unsuccessful", job .. ":failed"
  node[5], node[6] = redis.call("SCARD", waiting), redis.call("HLEN", processed)
  node[7], node[8] = redis.call("ZCARD", failed), redis.call("HLEN", ignored)
  if depth < tonumber(max_depth) then
    if node[5] > 0 then
      add_children(redis.call("SSCAN", waiting, "0", "COUNT", most_children)[2], place)
    end
    if node[6] > 0 then
      add_children(some_fields(processed, node[6]), place)
    end
    if node[7] > 0 then
      add_children(redis.call("ZRANGE", failed, 0, most_children - 1), place)
    end
    if node[8] > 0 then
      add_children(some_fields(ignored, node[8]), place)
    end
  end
  if place == level_end then
    depth, level_end = depth + 1, #nodes
  end
  place = place + 1
end
return nodes
