// Real workers and listeners. A job's data tells the processor what to do, so both languages run the same work:
// { sleep_ms, log: [...], progress: [...], fail_times, error, unrecoverable, result, block }

import { setTimeout as sleep } from 'node:timers/promises';

import { library } from './bench.mjs';

const EVENTS = [
  'active', 'added', 'cleaned', 'completed', 'debounced', 'deduplicated', 'delayed', 'drained', 'duplicated',
  'failed', 'paused', 'progress', 'removed', 'resumed', 'retries-exhausted', 'stalled', 'waiting', 'waiting-children',
];

const FOR_EVER = 2 ** 31 - 1;

export async function followInstructions(job) {
  const { data } = job;
  for (const line of data.log ?? []) await job.log(line);
  for (const progress of data.progress ?? []) await job.updateProgress(progress);
  if (data.block) await sleep(FOR_EVER);
  if (data.sleep_ms) await sleep(data.sleep_ms);
  if (job.attemptsMade < (data.fail_times ?? 0)) throw failureOf(data);
  return data.result === undefined ? null : data.result;
}

function failureOf({ error = 'asked to fail', unrecoverable }) {
  return unrecoverable ? new library.UnrecoverableError(error) : new Error(error);
}

function tellRuns(worker, tell) {
  worker.on('active', (job) => tell({ what: 'active', id: job.id, attempt: job.attemptsStarted, at: Date.now() }));
  worker.on('completed', (job, value) => tell({ what: 'completed', id: job.id, value, at: Date.now() }));
  worker.on('failed', (job, error) => tell({ what: 'failed', id: job?.id ?? null, reason: error.message, at: Date.now() }));
  worker.on('stalled', (id) => tell({ what: 'stalled', id, at: Date.now() }));
  worker.on('error', (error) => tell({ what: 'error', reason: error.message, at: Date.now() }));
}

export const live = {
  async start_worker(bench, { handle, opts = {} }, tell) {
    const worker = new library.Worker(bench.name, followInstructions, { ...bench.base, ...opts, autorun: false });
    tellRuns(worker, tell);
    bench.live.set(handle, worker);
    await worker.waitUntilReady();
    worker.run().catch((error) => tell({ what: 'error', reason: error.message }));
    return worker.id;
  },

  async start_events(bench, { handle, from = '$' }, tell) {
    const events = new library.QueueEvents(bench.name, { ...bench.base, lastEventId: from });
    // Events without fields come with their id alone.
    for (const what of EVENTS) events.on(what, (fields) => tell({ what, fields: Object(fields) === fields ? fields : {} }));
    events.on('error', (error) => tell({ what: 'error', fields: { reason: error.message } }));
    events.setMaxListeners(0); // one for each job that is waited for
    bench.live.set(handle, events);
    await events.waitUntilReady();
    return null;
  },

  async wait_until_finished(bench, { id, handle, timeout }) {
    const job = await library.Job.fromId(bench.queue, id);
    return job.waitUntilFinished(bench.live.get(handle), timeout);
  },

  async stop(bench, { handle, force = false }) {
    const part = bench.live.get(handle);
    bench.live.delete(handle);
    await part.close(force);
    return null;
  },

  spans: (bench) => bench.telemetry.spans.splice(0),
};
