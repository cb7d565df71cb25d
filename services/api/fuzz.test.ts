import { type IncomingHttpHeaders, request } from 'node:http';
import fc from 'fast-check';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createPool } from '../../lib/store/pool.ts';
import { ADMIN_KEY, startTestApi, type TestApi } from '../testing/api.ts';
import { type FuzzedRequest, type Known, operationsOf, requestsOf } from '../testing/arbitrary-requests.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { findRoute, requireDocumented } from '../testing/documented.ts';
import { givenDead, givenDelivery, givenSucceeded } from '../testing/given-deliveries.ts';
import { printOpenApi } from './openapi-file.ts';

/** For each operation; what a busy machine does not get done in this time is left out, but for the first. */
const RUNS = 40;
const BUDGET_MS = 300;
const HANGS_MS = 10_000;

// What deletes goes last: it leaves little to ask the others about.
const operations = operationsOf(JSON.parse(printOpenApi())).sort(
  (a, b) => Number(a.method === 'DELETE') - Number(b.method === 'DELETE'),
);
let database: TestDatabase;
let pool: pg.Pool;
let api: TestApi;
let known: Known;
const answered = { well: 0, refused: 0 };

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 1, applicationName: 'test' });
  api = await startTestApi(database.url, { RELAY_BODY_TIMEOUT_SECS: '2', RELAY_MAX_PAYLOAD_BYTES: '100000' });
  const ids = await givenThings();
  const key = await api.call('POST', '/v1/keys', { body: { scopes: ['read'] } });
  const keys = [...Array.from({ length: 12 }, () => ADMIN_KEY), key.json.key];
  known = { ids, cursors: await readCursors(ids), keys };
});
afterAll(async () => {
  await api.stop();
  await pool.end();
  await database.drop();
});

/** Endpoints, events, deliveries in every state, keys, tokens, jobs and tenants: enough that deleting some leaves others. */
async function givenThings(): Promise<Record<string, string[]>> {
  const ids: Record<string, string[]> = {};
  const remember = (collection: string, id: string) => {
    ids[collection] = [...(ids[collection] ?? []), id];
  };
  for (let round = 0; round < 4; round += 1) {
    const endpoint = await api.call('POST', '/v1/endpoints', {
      body: { url: 'https://sink.example.com/in' },
    });
    const deliveries = [0, 1, 2].map(() => givenDelivery(pool, { endpointId: endpoint.json.id }));
    const [dead, succeeded, pending] = await Promise.all(deliveries);
    await givenDead(pool, dead!.deliveryId);
    await givenSucceeded(pool, succeeded!.deliveryId);
    const made = {
      tenants: await api.call('POST', '/v1/tenants', { body: { name: 'one' } }),
      keys: await api.call('POST', '/v1/keys', { body: { scopes: ['read'] } }),
      'portal-tokens': await api.call('POST', '/v1/portal-tokens', { body: {} }),
      replays: await api.call('POST', '/v1/replays', { body: { filter: {} } }),
      endpoints: endpoint,
    };
    for (const [collection, answer] of Object.entries(made)) remember(collection, answer.json.id);
    for (const one of [dead, succeeded, pending]) {
      remember('deliveries', one!.deliveryId);
      remember('events', one!.eventId);
    }
  }
  return ids;
}

/** A cursor of every list that has a second page. */
async function readCursors(ids: Known['ids']): Promise<string[]> {
  const cursors: string[] = [];
  for (const { method, path, parameters } of operations) {
    if (method !== 'GET' || !parameters.some((one) => one.name === 'cursor')) continue;
    for (const id of path.includes('{id}') ? (ids[path.split('/')[2]!] ?? []) : ['']) {
      const page = await api.call('GET', `${path.replace('{id}', id)}?limit=1`);
      if (page.json.next_cursor) cursors.push(page.json.next_cursor);
    }
  }
  return cursors;
}

interface Answer {
  status: number;
  headers: Headers;
  text: string;
}

/** Sends what a browser's fetch would not; throws when no answer comes in time. */
function send({ method, path, headers, body }: FuzzedRequest): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const { hostname, port } = new URL(api.url);
    const sent = request({ hostname, port, method, path, headers, agent: false, timeout: HANGS_MS });
    sent.once('response', (response) => {
      const chunks: Buffer[] = [];
      response.on('data', (chunk: Buffer) => chunks.push(chunk));
      response.once('error', reject);
      response.once('end', () => {
        const text = Buffer.concat(chunks).toString('utf8');
        resolve({ status: response.statusCode ?? 0, headers: toHeaders(response.headers), text });
      });
    });
    sent.once('timeout', () => sent.destroy(new Error(`no answer within ${HANGS_MS} ms`)));
    sent.once('error', reject);
    sent.end(body ?? undefined);
  });
}

function toHeaders(headers: IncomingHttpHeaders): Headers {
  return new Headers(Object.entries(headers).map(([name, value]): [string, string] => [name, String(value)]));
}

describe('every route', () => {
  it('is fuzzed', () => {
    expect(operations.length).toBeGreaterThan(40);
    expect(known.cursors.length).toBeGreaterThan(5);
  });

  it.each(operations.map((operation) => [operation.method, operation.path, operation] as const))(
    '%s %s answers whatever it is asked as its document says, and never with 5xx',
    async (method, path, operation) => {
      const mayFail = findRoute(method, path)?.answers.some((one) => one.status >= 500);
      const until = performance.now() + BUDGET_MS;
      let sent = 0;
      const property = fc.asyncProperty(requestsOf(operation, known), async (fuzzed) => {
        if (sent > 0 && performance.now() > until) return;
        sent += 1;
        const answer = await send(fuzzed);
        answered[answer.status < 300 ? 'well' : 'refused'] += 1;
        requireDocumented(fuzzed.method, fuzzed.path, answer);
        if (!mayFail) expect(answer.status, answer.text).toBeLessThan(500);
      });
      await fc.assert(property, { numRuns: RUNS });
    },
    30_000,
  );

  it('was asked for what it does, and not only for what it refuses', () => {
    expect(answered.well).toBeGreaterThan(answered.refused / 4);
  });

  it('has left the process well, and the database whole', async () => {
    const health = await api.call('GET', '/healthz');
    expect(health.text).toBe('ok');
    const { rows } = await pool.query(
      `select count(*)::integer as odd from relay.deliveries d where d.status = 'pending'
         and not exists (select from relay.queue q where q.delivery_id = d.id)`,
    );
    expect(rows).toEqual([{ odd: 0 }]);
  });
});
