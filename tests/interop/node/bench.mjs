// One bench is one queue as a Node application holds it: a Queue, a stepwise Worker, and what live workers and
// listeners were started on it. Nothing here writes to Redis beyond what the library itself does when it is opened.

import { createRequire } from 'node:module';

import { MemoryTelemetry } from './telemetry.mjs';

const require = createRequire(import.meta.url);
const generation = process.argv.includes('--six') ? 'bullmq6' : 'bullmq';

const { Cluster } = require('ioredis');

export const library = require(generation);
export const version = require(`${generation}/package.json`).version;

const HAND_DRIVEN = { autorun: false, skipStalledCheck: true, skipLockRenewal: true };

const CLUSTER = 'redis+cluster://';

// A cluster is a client of our own making, which the library borrows and we close.
export function connectionOf(url) {
  if (url.startsWith(CLUSTER)) {
    const nodes = url.slice(CLUSTER.length).split(',').map((address) => {
      const [host, port] = address.split(':');
      return { host, port: Number(port) };
    });
    return new Cluster(nodes, { redisOptions: { maxRetriesPerRequest: null } });
  }
  const { hostname, port, username, password, pathname } = new URL(url);
  return {
    host: hostname,
    port: Number(port || 6379),
    username: decodeURIComponent(username) || undefined,
    password: decodeURIComponent(password) || undefined,
    db: Number(pathname.slice(1) || 0),
    maxRetriesPerRequest: null,
  };
}

export class Bench {
  constructor({ url, prefix = 'bull', queue, worker = {}, defaults, max_events: maxEvents, telemetry, quiet }) {
    this.telemetry = telemetry ? new MemoryTelemetry() : undefined;
    this.name = queue;
    this.base = { connection: connectionOf(url), prefix, telemetry: this.telemetry };
    this.queue = new library.Queue(queue, {
      ...this.base,
      defaultJobOptions: defaults,
      skipMetasUpdate: Boolean(quiet),
      ...(maxEvents === undefined ? {} : { streams: { events: { maxLen: maxEvents } } }),
    });
    this.worker = new library.Worker(queue, null, { ...this.base, ...HAND_DRIVEN, ...worker });
    this.producer = null;
    this.inHand = new Map(); // job id → the Job as it was picked up
    this.live = new Map(); // handle → a running Worker or QueueEvents
    for (const part of [this.queue, this.worker]) part.on('error', () => {}).setMaxListeners(0);
  }

  async ready() {
    await Promise.all([this.queue.waitUntilReady(), this.worker.waitUntilReady()]);
    if (!this.queue.opts.skipMetasUpdate) await this.writeMeta();
  }

  // What opening a Queue writes; repeated after the server was emptied between two runs.
  async writeMeta() {
    const { backend, metaValues, keys } = this.queue;
    if (backend) await backend.setQueueMeta(metaValues); // the sixth generation hides its client
    else await (await this.queue.client).hset(keys.meta, metaValues);
  }

  scripts() {
    return this.worker.backend ?? this.worker.scripts;
  }

  flows() {
    if (!this.producer) {
      this.producer = new library.FlowProducer(this.base);
      this.producer.on('error', () => {});
    }
    return this.producer;
  }

  async reset() {
    this.inHand.clear();
    this.worker.limitUntil = 0;
    this.worker.drained = false;
    await this.writeMeta();
  }

  async close() {
    for (const part of this.live.values()) await part.close();
    await this.producer?.close();
    await this.worker.close(true);
    await this.queue.close();
    if (this.base.connection instanceof Cluster) this.base.connection.disconnect();
  }
}
