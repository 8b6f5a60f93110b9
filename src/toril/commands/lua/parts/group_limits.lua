--[[
  Part of the scripts that know the limits of groups: which jobs of a group may begin, which are held, and which hold a
  slot.

  A job whose group is closed (paused, or at its concurrency or rate) is held: it stands in the delayed set, where every
  client sees it, and in the sorted set `held` of its group, by its virtual time. Of the held jobs of a group only the
  first one has a time at which the group may be open again; the others are parked far in the future, so that a group
  costs one look at that time, however many jobs it holds.

  A slot is the id of a job in the set `slots` of its group, and of no other: slots are checked against the lock and the
  active list, never counted up and down, so that jobs which other clients end or remove free theirs.

  Returns functions. The state of a group is read once in a script: { room = how many jobs may begin, opens = when it may
  be open again (ms), is_blocked = paused or at its rate }.
]]
--@keys wait active prioritized events delayed paused meta pc marker
--@args base
--@own group_ticks group_ticks
local PARKED_MS = 24 * 3600 * 1000
-- A group that is at its concurrency is looked at again after this time, if nobody freed a slot before.
local RECHECK_MS = 60 * 1000
-- Slots of a full group that one look checks, and held jobs that one step releases.
local SLOTS_CHECKED, RELEASED_AT_ONCE = 10, 100
-- Entries of `held` that one step removes because their jobs are gone.
local GONE_AT_ONCE = 1000
local NO_LIMIT = 2 ^ 31
local SCORES_PER_MS, SCORES_PER_TICK = 0x1000, 0x100000000

local call = redis.call
local time = call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local own = base .. "toril:group"
local slots_of_all, holding, all_limits, all_paused =
  own .. "-slots", own .. "-holding", own .. "-limits", own .. "-paused"

local states, known_limits, decoded, freed = {}, {}, {}, {}
local groups = {now = now}

-- --- limits ----------------------------------------------------------------------------------------------------------

local function decode(text)
  if not text then
    return {}
  end
  if not decoded[text] then
    local ok, limits = pcall(cjson.decode, text)
    decoded[text] = ok and type(limits) == "table" and limits or {}
  end
  return decoded[text]
end

-- The limits of a group: its own, or else those of all groups, which stand under "".
local function limits_of(name)
  local limits = known_limits[name]
  if not limits then
    local found = call("HMGET", all_limits, name, "")
    local read = decode(found[1] or found[2])
    limits = {
      concurrency = tonumber(read["concurrency"]), max = tonumber(read["max"]), duration = tonumber(read["duration"]),
      keeps_order = read["keepOrder"] == true, has_size = read["size"] ~= nil,
    }
    known_limits[name] = limits
  end
  return limits
end

-- --- slots -----------------------------------------------------------------------------------------------------------

-- Whether the job still needs its slot: it runs, or it will run again and the group keeps its order. A held job needs
-- none, because held jobs go on in their order: the first one would wait for the slot of a later one.
local function is_used(state, id)
  if call("EXISTS", base .. id .. ":lock") == 1 or call("LPOS", active, id) then
    return true
  end
  if not state.limits.keeps_order or call("ZSCORE", own .. ":held:" .. state.name, id) then
    return false
  end
  return (call("ZSCORE", delayed, id) or call("ZSCORE", prioritized, id)
    or call("LPOS", wait, id) or call("LPOS", paused, id)) and true or false
end

function groups.free(state, id)
  call("SREM", state.slots, id)
  call("HDEL", slots_of_all, id)
end

-- The number of slots in use. A full group may have slots of jobs that another client has ended or removed.
local function used_slots(state)
  local used = call("SCARD", state.slots)
  if used >= state.limits.concurrency then
    for _, id in ipairs(call("SRANDMEMBER", state.slots, SLOTS_CHECKED)) do
      if not is_used(state, id) then
        groups.free(state, id)
        used = used - 1
      end
    end
  end
  return used
end

-- --- how many may begin ----------------------------------------------------------------------------------------------

-- The starts within the period: a list of their times, newest first. Older ones are removed.
local function begun_in_period(state)
  local oldest = tonumber(call("LINDEX", state.starts, -1))
  while oldest and oldest < now - state.limits.duration do
    call("RPOP", state.starts)
    oldest = tonumber(call("LINDEX", state.starts, -1))
  end
  return call("LLEN", state.starts), oldest
end

local function read_room(state)
  local limits = state.limits
  state.room, state.opens, state.is_blocked = NO_LIMIT, now, false
  if call("SISMEMBER", all_paused, state.name) == 1 then
    state.room, state.opens, state.is_blocked = 0, now + PARKED_MS, true
    return
  end
  if limits.concurrency then
    state.room = math.max(0, limits.concurrency - used_slots(state))
    state.opens = state.room > 0 and now or now + RECHECK_MS
  end
  if limits.max and limits.duration then
    local begun, oldest = begun_in_period(state)
    state.starts_left, state.oldest_start = math.max(0, limits.max - begun), oldest
    state.room = math.min(state.room, state.starts_left)
    if begun >= limits.max then
      state.opens, state.is_blocked = oldest + limits.duration + 1, true
    end
  end
end

function groups.has_slot(state, id)
  return state.limits.concurrency and call("SISMEMBER", state.slots, id) == 1
end

-- Whether a job may begin: there is room, or it has kept the slot of its last attempt.
function groups.may_begin(state, id)
  return state.room > 0 or (not state.is_blocked and groups.has_slot(state, id))
end

-- Counts a job that will begin.
function groups.choose(state)
  local limits = state.limits
  state.room = state.room - 1
  if state.room == 0 then
    state.opens = now + RECHECK_MS
  end
  if state.starts_left then
    state.starts_left = state.starts_left - 1
    if state.starts_left == 0 then
      state.opens, state.is_blocked = (state.oldest_start or now) + limits.duration + 1, true
    end
  end
end

-- The state of a group. When it is read first, up to `wanted` of its held jobs are released.
function groups.state_of(name, wanted)
  local state = states[name]
  if not state then
    state = {name = name, limits = limits_of(name)}
    for _, what in ipairs({"slots", "held", "starts"}) do
      state[what] = own .. ":" .. what .. ":" .. name
    end
    states[name] = state
    read_room(state)
    state.holds = call("EXISTS", state.held) == 1
    if state.holds and state.room > 0 then
      state.has_released = groups.release(state, math.min(state.room, wanted)) > 0
    end
  end
  return state
end

-- Frees the slot of a job that was settled, with `reopen`. One that will run again keeps it if the group keeps its order.
function groups.settled(name, id, is_over)
  if is_over or not limits_of(name).keeps_order then
    freed[name] = freed[name] or {}
    table.insert(freed[name], id)
  end
end

-- Frees the slot of a job that is not active, with `reopen`, unless it is kept; returns whether it is freed.
function groups.free_unused(name, id)
  if is_used({name = name, limits = limits_of(name)}, id) then
    return false
  end
  freed[name] = freed[name] or {}
  table.insert(freed[name], id)
  return true
end

-- Gives an active job of the group its slot, if the group has a concurrency.
function groups.register(name, id)
  if limits_of(name).concurrency and call("SADD", own .. ":slots:" .. name, id) == 1 then
    call("HSET", slots_of_all, id, name)
  end
end

-- Frees slots, and reads their groups, which releases held jobs: as many as can be fetched, or as were freed.
function groups.reopen(wanted)
  for name, ids in pairs(freed) do
    for from = 1, #ids, 1000 do
      local to = math.min(from + 999, #ids)
      call("SREM", own .. ":slots:" .. name, unpack(ids, from, to))
      call("HDEL", slots_of_all, unpack(ids, from, to))
    end
  end
  for name, ids in pairs(freed) do
    groups.state_of(name, math.max(wanted, #ids))
  end
end

-- --- held jobs -------------------------------------------------------------------------------------------------------

local ticks -- read when it is needed
local function read_ticks()
  ticks = ticks or group_ticks(KEYS, ARGV, base)
  return ticks
end

-- Moves the first held jobs back to where they stood; returns how many. Ids that left the delayed set are forgotten.
function groups.release(state, wanted)
  local released, seen = 0, 0
  wanted = math.min(wanted, RELEASED_AT_ONCE)
  while released < wanted and seen < GONE_AT_ONCE do
    local first = call("ZRANGE", state.held, 0, wanted - released - 1, "WITHSCORES")
    if #first == 0 then
      break
    end
    for at = 1, #first, 2 do
      local id = first[at]
      seen = seen + 1
      if call("ZSCORE", delayed, id) then
        local tick = read_ticks().to_tick(tonumber(first[at + 1]))
        call("ZADD", prioritized, tick * SCORES_PER_TICK + call("INCR", pc) % SCORES_PER_TICK, id)
        call("ZREM", delayed, id)
        call("HSET", base .. id, "delay", 0, "priority", tick)
        call("XADD", events, "*", "event", "waiting", "jobId", id, "prev", "delayed")
        released = released + 1
      end
      call("ZREM", state.held, id)
    end
  end
  if released > 0 and not call("HGET", meta, "paused") then
    call("ZADD", marker, 0, "0")
  end
  return released
end

-- Holds a job that is among the prioritized jobs with this score, or in wait without one.
function groups.hold(state, id, score)
  local due = now + PARKED_MS
  -- The first write is one that a server without memory refuses, before anything is changed.
  call("ZADD", delayed, due * SCORES_PER_MS, id)
  local tick
  if score then
    call("ZREM", prioritized, id)
    tick = math.floor(score / SCORES_PER_TICK)
  else
    call("LREM", wait, -1, id)
    tick = tonumber(call("HGET", base .. id, "priority")) or 0
  end
  call("ZADD", state.held, read_ticks().to_time(tick), id)
  call("SADD", holding, state.name)
  call("HSET", base .. id, "delay", PARKED_MS)
  call("XADD", events, "*", "event", "delayed", "jobId", id, "delay", due)
  state.holds = true
end

-- Gives the first held job of the group the time at which the group may be open.
function groups.schedule(state)
  for _ = 1, GONE_AT_ONCE do
    local first = call("ZRANGE", state.held, 0, 0)[1]
    if not first then
      call("SREM", holding, state.name)
      return
    end
    local due = tonumber(call("ZSCORE", delayed, first))
    if due then
      local opens = groups.may_begin(state, first) and now or state.opens
      if due > opens * SCORES_PER_MS then
        call("ZADD", delayed, opens * SCORES_PER_MS, first)
        call("HSET", base .. first, "delay", opens - now)
      end
      return
    end
    call("ZREM", state.held, first)
  end
end

-- --- beginning -------------------------------------------------------------------------------------------------------

-- Records that a job of the group has begun, or that it left the queue because there is no such job.
function groups.begun(state, id, is_job)
  local limits = state.limits
  if is_job and limits.concurrency then
    local new = state.new_slots or {}
    new[#new + 1], state.new_slots = id, new
  end
  if is_job and limits.max and limits.duration then
    call("LPUSH", state.starts, now)
    call("PEXPIRE", state.starts, limits.duration + 1000)
  end
  if limits.has_size then
    call("ZREM", own .. ":waiting:" .. state.name, id)
  end
  if state.holds then
    call("ZREM", state.held, id)
  end
end

-- Writes the slots of the jobs that have begun.
local function write_slots(state)
  local new = state.new_slots
  if new then
    local pairs_of = {}
    for _, id in ipairs(new) do
      pairs_of[#pairs_of + 1], pairs_of[#pairs_of + 2] = id, state.name
    end
    call("SADD", state.slots, unpack(new))
    call("HSET", slots_of_all, unpack(pairs_of))
    state.new_slots = nil
  end
end

-- Ends a script: every group that was read and holds jobs gets its time, and a worker is woken then.
function groups.finish()
  local any = false
  for _, state in pairs(states) do
    write_slots(state)
    if state.holds then
      any = true
      groups.schedule(state)
    end
  end
  local soonest = any and call("ZRANGE", delayed, 0, 0, "WITHSCORES")[2]
  if soonest then
    call("ZADD", marker, tonumber(soonest) / SCORES_PER_MS, "1")
  end
end

return groups
