// What Node's queues and jobs tell and do besides adding and processing, for the comparison with toril's answers.

import { library } from './bench.mjs';

async function jobOf(bench, id) {
  return library.Job.fromId(bench.queue, id);
}

export const surface = {
  dependency_counts: async (bench, { id }) => (await jobOf(bench, id)).getDependenciesCount(),
  dependencies_page: async (bench, { id, opts }) => (await jobOf(bench, id)).getDependencies(opts),
  count_by_types: (bench, { types }) => bench.queue.getJobCountByTypes(...types),
  ranges: (bench, { types, start, end, asc }) => bench.queue.getRanges(types, start, end, asc),
  as_json: async (bench, { id }) => (await jobOf(bench, id)).asJSON(),
  meta: (bench) => bench.queue.getMeta(),
  remove_orphaned_jobs: (bench) => bench.queue.removeOrphanedJobs(),
  async publish_event(bench, { fields }) {
    const producer = new library.QueueEventsProducer(bench.name, bench.base);
    try {
      return await producer.publishEvent(fields);
    } finally {
      await producer.close();
    }
  },
  async worker_events(bench, { opts = {} }) {
    const worker = new library.Worker(bench.name, async (job) => { await job.updateProgress(40); return 1; }, { ...bench.base, ...opts, autorun: false });
    const seen = [];
    for (const what of ['ready', 'active', 'progress', 'completed', 'closing', 'closed']) worker.on(what, () => seen.push(what));
    const done = new Promise((resolve) => worker.on('completed', resolve));
    worker.run();
    await done;
    await worker.close();
    return seen;
  },
};
