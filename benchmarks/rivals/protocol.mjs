// The protocol between the runner and an adapter in Node; protocol.py describes it.

const IDLE_MS = 1000;
const EMPTY_CHECKS = 10;
const PAUSE_BETWEEN_SAMPLES_MS = 5;

const cpuSeconds = () => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
};

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export function payload(task, i) {
  return task.payload_bytes ? { i, pad: 'x'.repeat(task.payload_bytes) } : { i };
}

export class Timer {
  constructor() {
    this.began = Date.now() / 1000;
    this.clock = performance.now();
    this.cpu = cpuSeconds();
  }

  figures(jobs) {
    return {
      jobs,
      seconds: (performance.now() - this.clock) / 1000,
      cpu: cpuSeconds() - this.cpu,
      began: this.began,
      ended: Date.now() / 1000,
    };
  }
}

export class Meter {
  constructor(task) {
    this.task = task;
    this.count = 0;
    this.timer = null;
    this.done = new Promise((resolve) => { this.resolve = resolve; });
  }

  tick() {
    this.timer ??= new Timer();
    this.count += 1;
    if (this.count >= this.task.jobs || this.task.shared) {
      this.last = this.timer.figures(this.count);
      if (this.count >= this.task.jobs) this.resolve();
    }
  }

  async finished() {
    if (!this.task.shared) return this.done;
    // A process that starts late may get no job at all.
    for (let seen = -1, empty = 0; seen !== this.count || (!this.count && empty < EMPTY_CHECKS); empty += 1) {
      seen = this.count;
      await sleep(IDLE_MS);
    }
  }

  figures() {
    const nothing = { jobs: 0, seconds: 0, cpu: 0, began: Date.now() / 1000, ended: 0 };
    return { ...(this.last ?? nothing), rss_mb: process.memoryUsage.rss() / 1e6 };
  }
}

export async function addInChunks(task, addMany, size = 1000) {
  const timer = new Timer();
  for (let start = 0; start < task.jobs; start += size) {
    const length = Math.min(size, task.jobs - start);
    await addMany(Array.from({ length }, (_, k) => start + k));
  }
  return timer.figures(task.jobs);
}

export async function addOneByOne(task, add) {
  let next = 0;
  const adder = async () => { while (next < task.jobs) await add(next++); };
  const timer = new Timer();
  await Promise.all(Array.from({ length: task.concurrency ?? 1 }, adder));
  return timer.figures(task.jobs);
}

export class Latency {
  constructor(task) {
    this.task = task;
    this.started = [];
    this.known = [];
  }

  tick() {
    this.startedAt = performance.now();
  }

  async measure(add, waitDone) {
    for (let i = 0; i < this.task.jobs; i += 1) {
      await sleep(PAUSE_BETWEEN_SAMPLES_MS);
      const began = performance.now();
      await waitDone(await add(i));
      this.known.push(performance.now() - began);
      this.started.push(this.startedAt - began);
    }
    return { jobs: this.task.jobs, started_ms: this.started, known_ms: this.known };
  }
}

export async function runTask(tasks) {
  const task = JSON.parse(process.argv[2]);
  const run = tasks[task.task];
  const figures = run ? await run(task) : { unsupported: true };
  process.stdout.write(`\n${JSON.stringify(figures)}\n`, () => process.exit(0));
}
