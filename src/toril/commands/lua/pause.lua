--[[
  Pauses or resumes a queue without losing a job.

  Upstream renames one list to the other, which destroys the jobs of the other. Within one generation it is always empty;
  clients of the sixth generation leave jobs in `wait` while the queue is paused. Those are moved over first, as the
  older ones, and the official body finds what it expects.

  KEYS   1 list to leave (wait or paused), 2 list to fill, 3 meta, 4 prioritized, 5 events, 6 delayed, 7 marker
  ARGV   1 paused or resumed
  Reply  nothing
]]
--@official pauseOrResume pause

local wasPaused = redis.call("HEXISTS", KEYS[3], "paused") == 1
if redis.call("EXISTS", KEYS[1]) == 1 then
  local others = redis.call("LRANGE", KEYS[2], 0, -1)
  for from = 1, #others, 5000 do
    redis.call("RPUSH", KEYS[1], unpack(others, from, math.min(from + 4999, #others)))
  end
  redis.call("DEL", KEYS[2])
end
pauseOrResume(KEYS, ARGV)
-- What had waited through the pause in its place needs a worker to wake up, too.
if wasPaused and ARGV[1] == "resumed" and redis.call("EXISTS", KEYS[2]) == 1 then
  redis.call("ZADD", KEYS[7], 0, "0")
end
