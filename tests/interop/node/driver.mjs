// The reference: BullMQ driven from another process. One JSON request per line on stdin, one JSON answer per line on
// stdout, `{id, ok}` or `{id, error}`; live workers and listeners tell what happens as `{stream, item}` lines.
// The process ends when stdin ends, so it cannot outlive whoever started it.

import { createInterface } from 'node:readline';

import { installClock, setClock } from './clock.mjs';

installClock();

const { Bench, version } = await import('./bench.mjs');
const { manualWorker } = await import('./manual_worker.mjs');
const { live } = await import('./live.mjs');
const { management } = await import('./manage.mjs');
const { surface } = await import('./surface.mjs');
const { viewOfError } = await import('./views.mjs');

const operations = { ...management, ...manualWorker, ...live, ...surface };
const benches = new Map();

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

const connectionOperations = {
  version: () => version,
  clock: ({ at }) => setClock(at),
  async connect({ bench, ...settings }) {
    const made = new Bench(settings);
    benches.set(bench, made);
    await made.ready();
  },
  reset: ({ bench }) => benches.get(bench).reset(),
  async close({ bench }) {
    const made = benches.get(bench);
    benches.delete(bench);
    await made.close();
  },
};

async function perform({ op, args = {} }) {
  if (op in connectionOperations) return connectionOperations[op](args);
  const bench = benches.get(args.bench);
  if (!bench) throw new Error(`no bench named ${args.bench}; connect first`);
  if (!(op in operations)) throw new Error(`no operation named ${op}`);
  return operations[op](bench, args, (item) => say({ stream: args.handle, item }));
}

async function answer(line) {
  const request = JSON.parse(line);
  try {
    const value = await perform(request);
    say({ id: request.id, ok: value === undefined ? null : value });
  } catch (error) {
    say({ id: request.id, error: viewOfError(error) });
  }
}

process.on('unhandledRejection', (error) => process.stderr.write(`unhandled: ${error?.stack ?? error}\n`));
createInterface({ input: process.stdin }).on('line', answer).on('close', () => process.exit(0));
