// Node's BullMQ as an application uses it. RIVAL_LIBRARY names the package of the major version.

import { createRequire } from 'node:module';

import { addInChunks, addOneByOne, runTask, Latency, Meter, payload } from '../protocol.mjs';

// The packages are installed in RIVAL_HOME, not beside this file.
const require = createRequire(`${process.env.RIVAL_HOME}/`);
const { Queue, QueueEvents, Worker } = require(process.env.RIVAL_LIBRARY);

function connectionOf(url) {
  const { hostname, port } = new URL(url);
  return { host: hostname, port: Number(port), maxRetriesPerRequest: null };
}

function optionsOf(task, i) {
  const options = { ...task.options };
  if (task.mix === 'delayed' && i % 2) options.delay = 1 + (i % 10);
  if (task.mix === 'prioritized' && i % 2) options.priority = 1 + (i % 5);
  if (task.mix === 'retries') Object.assign(options, { attempts: 2, backoff: { type: 'fixed', delay: 1 } });
  return options;
}

async function withQueue(task, work) {
  const queue = new Queue(task.queue, { connection: connectionOf(task.url) });
  await queue.waitUntilReady();
  return work(queue);
}

function makeWorker(task, handler) {
  const name = task.worker ? { name: task.worker } : {};
  return new Worker(task.queue, handler, {
    connection: connectionOf(task.url),
    concurrency: task.concurrency ?? 1,
    autorun: false,
    ...name,
  });
}

const bulk = (task) => withQueue(task, (queue) => addInChunks(task, (part) => queue.addBulk(
  part.map((i) => ({ name: 'job', data: payload(task, i), opts: optionsOf(task, i) })),
)));

const single = (task) => withQueue(task, (queue) => addOneByOne(task, (i) => queue.add('job', payload(task, i))));

async function process_(task) {
  const meter = new Meter(task);
  const handle = async () => { meter.tick(); };
  const failSome = async (job) => {
    if (job.data.i % 10 === 0 && job.attemptsMade === 0) throw new Error('one in ten fails at first');
    meter.tick();
  };
  const worker = makeWorker(task, task.mix === 'retries' ? failSome : handle);
  await worker.waitUntilReady();
  worker.run();
  await meter.finished();
  const figures = meter.figures();
  await worker.close();
  return figures;
}

async function latency(task) {
  const probe = new Latency(task);
  const events = new QueueEvents(task.queue, { connection: connectionOf(task.url) });
  await events.waitUntilReady();
  const worker = makeWorker(task, async () => { probe.tick(); });
  worker.run();
  await worker.waitUntilReady();
  return withQueue(task, (queue) => probe.measure(
    (i) => queue.add('job', payload(task, i)),
    (job) => job.waitUntilFinished(events, 30_000),
  ));
}

await runTask({ bulk, single, process: process_, latency });
