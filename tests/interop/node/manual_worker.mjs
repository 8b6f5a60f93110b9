// The worker's part done by hand, one step at a time: pick up, keep, and settle with given lock tokens.

import { library } from './bench.mjs';
import { errorOf, viewOfEnd, viewOfJob } from './views.mjs';

function remember(bench, job) {
  if (job) bench.inHand.set(job.id, job);
  return viewOfJob(job);
}

// The Job as picked up; one that nobody holds is read afresh, or invented, so that refusals can be seen too.
async function held(bench, id) {
  const job = bench.inHand.get(id) ?? (await library.Job.fromId(bench.worker, id));
  return job ?? new library.Job(bench.worker, 'absent', {}, {}, id);
}

async function settle(bench, id, worker, action) {
  if (worker !== undefined) bench.worker.opts.name = worker;
  const job = await held(bench, id);
  bench.inHand.delete(id); // settled or refused, a worker lets go of it either way
  return action(job);
}

async function next(bench, fetched, token) {
  const [data, id] = fetched ?? [];
  return data ? remember(bench, await bench.worker.nextJobFromJobData(data, id, token)) : null;
}

// What the listeners of a worker are told while `action` runs; a value that is falsy in JavaScript is told as null.
async function toldDuring(worker, action) {
  const told = [];
  const end = (what) => (job) => told.push({ what, job: viewOfEnd(what, job) });
  const listeners = {
    completed: end('completed'),
    failed: end('failed'),
    error: (error) => told.push({ what: 'error', reason: error.message }),
  };
  for (const [what, listener] of Object.entries(listeners)) worker.on(what, listener);
  try {
    await action();
  } finally {
    for (const [what, listener] of Object.entries(listeners)) worker.off(what, listener);
  }
  return told;
}

export const manualWorker = {
  async pick_up(bench, { token, worker }) {
    bench.worker.opts.name = worker;
    bench.worker.limitUntil = 0; // the server decides about limits at every step, not our memory of the last one
    return remember(bench, await bench.worker.getNextJob(token, { block: false }));
  },

  complete: (bench, { id, value, token, fetch_next: fetchNext = false, worker }) =>
    settle(bench, id, worker, async (job) => next(bench, await job.moveToCompleted(value, token, fetchNext), token)),

  fail: (bench, { id, error, token, fetch_next: fetchNext = false, worker }) =>
    settle(bench, id, worker, async (job) => next(bench, await job.moveToFailed(errorOf(error), token, fetchNext), token)),

  give_back: (bench, { id, token }) => settle(bench, id, undefined, (job) => job.moveToWait(token)),

  postpone: (bench, { id, token, until }) => settle(bench, id, undefined, (job) => job.moveToDelayed(until, token)),

  wait_for_children: (bench, { id, token }) => settle(bench, id, undefined, (job) => job.moveToWaitingChildren(token)),

  // A worker's own way from a job in hand to its end, around a handler that returns a value; with `waits` it first asks
  // whether to wait for children (or for one of them), as BullMQ's documentation shows it.
  async run_handler(bench, { id, token, value, waits, child }) {
    const job = await held(bench, id);
    bench.inHand.delete(id);
    bench.worker.processFn = async () => {
      const opts = child ? { child: { id: child, queue: bench.queue.qualifiedName } } : {};
      if (waits && (await job.moveToWaitingChildren(token, opts))) throw new library.WaitingChildrenError();
      return value;
    };
    return toldDuring(bench.worker, () => bench.worker.processJob(job, token, () => false, new Set()));
  },

  async extend_lock(bench, { id, token, duration }) {
    return (await held(bench, id)).extendLock(token, duration);
  },

  extend_locks: (bench, { ids, tokens, duration }) => bench.scripts().extendLocks(ids, tokens, duration),

  sweep_stalled: (bench) => bench.scripts().moveStalledJobsToWait(),
};
