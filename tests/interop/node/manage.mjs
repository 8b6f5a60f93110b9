// What an application does to a queue and its jobs: adding, changing, removing, reading.

import { library } from './bench.mjs';
import { viewOfFlow, viewOfJob } from './views.mjs';

const STATES = ['waiting', 'active', 'delayed', 'prioritized', 'completed', 'failed', 'waiting-children', 'paused'];

async function onJob(bench, id, action) {
  const job = (await library.Job.fromId(bench.queue, id)) ?? new library.Job(bench.queue, 'absent', {}, {}, id);
  return action(job);
}

const adding = {
  add: async (bench, { name, data, opts }) => (await bench.queue.add(name, data, opts)).id,
  add_bulk: async (bench, { jobs }) => (await bench.queue.addBulk(jobs)).map((job) => job.id),
  add_flow: async (bench, { flow }) => viewOfFlow(await bench.flows().add(flow)),
  upsert_scheduler: async (bench, { id, repeat, template }) =>
    (await bench.queue.upsertJobScheduler(id, repeat, template))?.id ?? null,
  remove_scheduler: (bench, { id }) => bench.queue.removeJobScheduler(id),
};

const changingJobs = {
  update_progress: (bench, { id, progress }) => bench.queue.updateJobProgress(id, progress),
  log: (bench, { id, line, keep }) => bench.queue.addJobLog(id, line, keep),
  clear_logs: (bench, { id, keep }) => onJob(bench, id, (job) => job.clearLogs(keep)),
  update_data: (bench, { id, data }) => onJob(bench, id, (job) => job.updateData(data)),
  promote: (bench, { id }) => onJob(bench, id, (job) => job.promote()),
  change_priority: (bench, { id, priority, lifo }) => onJob(bench, id, (job) => job.changePriority({ priority, lifo })),
  change_delay: (bench, { id, delay }) => onJob(bench, id, (job) => job.changeDelay(delay)),
  retry: (bench, { id, state, reset = {} }) =>
    onJob(bench, id, (job) => job.retry(state, { resetAttemptsMade: reset.made, resetAttemptsStarted: reset.started })),
  remove: (bench, { id, children }) => bench.queue.remove(id, { removeChildren: children ?? true }),
  remove_child_dependency: (bench, { id }) => onJob(bench, id, (job) => job.removeChildDependency()),
  remove_unprocessed_children: (bench, { id }) => onJob(bench, id, (job) => job.removeUnprocessedChildren()),
};

const changingQueues = {
  pause: (bench) => bench.queue.pause(),
  resume: (bench) => bench.queue.resume(),
  drain: (bench, { delayed }) => bench.queue.drain(delayed),
  clean: (bench, { grace, limit, state }) => bench.queue.clean(grace, limit, state),
  obliterate: (bench, { force }) => bench.queue.obliterate({ force }),
  retry_jobs: (bench, { state, count, before }) => bench.queue.retryJobs({ state, count, timestamp: before }),
  promote_jobs: (bench, { count }) => bench.queue.promoteJobs({ count }),
  rate_limit: (bench, { duration }) => bench.queue.rateLimit(duration),
  set_concurrency: (bench, { concurrency }) =>
    concurrency === null ? bench.queue.removeGlobalConcurrency() : bench.queue.setGlobalConcurrency(concurrency),
  set_rate_limit: (bench, { jobs, duration }) =>
    jobs === null ? bench.queue.removeGlobalRateLimit() : bench.queue.setGlobalRateLimit(jobs, duration),
  remove_deduplication: (bench, { id }) => bench.queue.removeDeduplicationKey(id),
  trim_events: (bench, { length }) => bench.queue.trimEvents(length),
};

const reading = {
  counts: (bench) => bench.queue.getJobCounts(...STATES),
  counts_per_priority: (bench, { priorities }) => bench.queue.getCountsPerPriority(priorities),
  count: (bench) => bench.queue.count(),
  is_paused: (bench) => bench.queue.isPaused(),
  job: async (bench, { id }) => viewOfJob(await library.Job.fromId(bench.queue, id)),
  jobs: async (bench, { states, start = 0, end = -1, asc = false }) =>
    (await bench.queue.getJobs(states, start, end, asc)).map(viewOfJob),
  state: (bench, { id }) => bench.queue.getJobState(id),
  logs: (bench, { id, start, end }) => bench.queue.getJobLogs(id, start, end),
  metrics: (bench, { state }) => bench.queue.getMetrics(state),
  workers: (bench) => bench.queue.getWorkers(),
  dependencies: (bench, { id }) => onJob(bench, id, (job) => job.getDependencies()),
  children_values: (bench, { id }) => onJob(bench, id, (job) => job.getChildrenValues()),
  scheduler: (bench, { id }) => bench.queue.getJobScheduler(id),
  schedulers: (bench) => bench.queue.getJobSchedulers(),
};

export const management = { ...adding, ...changingJobs, ...changingQueues, ...reading };
