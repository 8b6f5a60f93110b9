// bull-board on a free loopback port: `node board.mjs <redis url> <prefix> <queue> [<queue> …]`.
// The first line it prints is JSON: its address, and every route it answers. It ends when stdin ends.

import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';

import { connectionOf, library } from './bench.mjs';

const require = createRequire(import.meta.url);
const { createBullBoard } = require('@bull-board/api');
const { BullMQAdapter } = require('@bull-board/api/bullMQAdapter');
const { ExpressAdapter } = require('@bull-board/express');
const express = require('express');
// The list that the board itself registers: a route that nobody asked for would go untested.
const { appRoutes } = require(join(dirname(require.resolve('@bull-board/api')), 'routes.js'));

const [url, prefix, ...names] = process.argv.slice(2);
const queues = names.map((name) => new library.Queue(name, { connection: connectionOf(url), prefix }));
const serverAdapter = new ExpressAdapter();
createBullBoard({ queues: queues.map((queue) => new BullMQAdapter(queue)), serverAdapter });

const app = express();
app.use('/', serverAdapter.getRouter());
const server = app.listen(0, '127.0.0.1', () => {
  const routes = appRoutes.api.map(({ method, route }) => [method.toUpperCase(), route]);
  process.stdout.write(`${JSON.stringify({ url: `http://127.0.0.1:${server.address().port}`, routes })}\n`);
});

process.stdin.resume().on('end', async () => {
  await Promise.all(queues.map((queue) => queue.close()));
  process.exit(0);
});
