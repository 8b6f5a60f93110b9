--[[
  Settles a batch of finished jobs and fetches up to `capacity` new ones, in one call.

  Each step leaves what the official script would leave when Node runs it with the same arguments, in the order given: a
  finish fetches the next job while there is capacity, then further fetches use the capacity that is left. A step that
  raises (a malformed hash, a wrong type) fails alone: the others are done, and jobs fetched before are returned.
  Upstream's scripts would leave such a job half moved, or return it again and again; here it is moved to failed, with the
  reason.
  When the server itself refuses to write, it does so before the first write: then the whole call is refused.

  Plain work is done by `parts/settle_many.lua`: completed jobs without parent, children, deduplication, metrics or limits
  to keep, on a queue without pause, limit or rate. It writes the same keys with a third of the calls. A single plain job
  is settled by `parts/settle_one.lua`, several jobs in a row that are delayed by `parts/settle_delayed.lua`. These read
  before they write, and leave everything else to the official scripts (`parts/settle_official.lua`).

  Upstream locks a job that a finish fetched under the token of the finished job; here it is locked under the token of the
  fetch, like all others of the call.

  capacity    how many jobs to fetch at most
  token       lock token of the jobs that are fetched
  worker      name of the worker, or ""
  rate_limit  packed, or ""
  job_id …    one settlement
    kind "completed" | "failed": value = result or reason, options = packed, fields = packed or "";
      options "" for a completed job that is kept for good and not counted in metrics: only such are plain
    kind "delayed": value = delay (ms), options = "1" to leave the attempt uncounted, fields = packed or ""
    kind "retry": value = push command, fields = packed or ""
    kind "wait": given back, attempt uncounted; value = how many of the jobs that are given back with it were fetched
      before it, or ""
  Reply       { codes, jobs, rate limit ttl (ms), next delayed job at (ms), error of the fetch or "" }, and 1 behind them
              when groups have limits and nothing more was fetched for that: `parts/settle_groups.lua` fetches then
                codes: 0 when all are accepted, else a number for each settlement, or the text of its error
                jobs: { field, value, ..., id } for each job fetched
]]
--@keys wait active prioritized events stalled limiter delayed paused meta pc marker
--@keys completed failed completed_metrics failed_metrics
--@args base now_ms capacity token lock_ms worker rate_limit
--@each job_id kind token value options fields
local LAST = #ARGV
-- `parts/settle_groups.lua` fetches itself.
local max_jobs = ARGV.settles_only and 0 or tonumber(capacity)

--@own settle_one settle_one
-- Capacity for one, on a queue without a rate, and nothing to settle or one plain job.
local first_kind, first_options, first_fields =
  ARGV[FIRST_ITEM + KIND], ARGV[FIRST_ITEM + OPTIONS], ARGV[FIRST_ITEM + FIELDS]
if max_jobs == 1 and rate_limit == "" and (LAST < FIRST_ITEM or (LAST < FIRST_ITEM + ITEM_SIZE
  and first_kind == "completed" and first_options == "" and first_fields == "")) then
  local reply = settle_one(KEYS, ARGV)
  if reply then
    return reply
  end
end

--@own settle_many settle_many
--@own settle_delayed settle_delayed
--@own settle_official settle_official
--@own error_text error_text
--@own writes_refused writes_refused

-- Shared by all parts; `open` is true while there is capacity left and the queue may have a job.
local batch = {jobs = {}, codes = {}, capacity = max_jobs, open = max_jobs > 0, limited = 0, next_at = 0}

local fetch_error = "" -- why no more jobs can be fetched
local official -- made only when it is needed

local at = FIRST_ITEM
while at <= LAST or batch.open do
  batch.begun = nil
  local settle = ARGV[at + KIND] == "delayed" and settle_delayed or settle_many
  local ok, done = pcall(settle, KEYS, ARGV, batch, at)
  if ok and done then
    at = at + ITEM_SIZE * done
  elseif batch.begun then
    -- It failed while it was writing: whether the settlements without a code were written is not known.
    fetch_error = error_text(KEYS, ARGV, done)
    local refused = writes_refused(KEYS, ARGV, fetch_error)
    if refused then
      return {err = refused}
    end
    batch.open = false
    at = at + ITEM_SIZE * batch.begun
    while #batch.codes < (at - FIRST_ITEM) / ITEM_SIZE do
      batch.codes[#batch.codes + 1] = fetch_error
      batch.refused = true
    end
  else
    official = official or settle_official(KEYS, ARGV, batch)
    if at <= LAST then
      local refused = official.settle(at)
      if refused then
        return {err = refused}
      end
      at = at + ITEM_SIZE
    else
      local fetched, failure = pcall(official.fetch)
      if not fetched then
        fetch_error = error_text(KEYS, ARGV, failure)
      end
      batch.open = false
    end
  end
end

if fetch_error ~= "" and #batch.codes == 0 and #batch.jobs == 0 then
  return {err = writes_refused(KEYS, ARGV, fetch_error) or fetch_error}
end
return {batch.refused and batch.codes or 0, batch.jobs, batch.limited, batch.next_at, fetch_error, batch.has_limits}
