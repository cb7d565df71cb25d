import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { migrate } from '../../lib/store/migrate.ts';
import { createPool } from '../../lib/store/pool.ts';
import { type Answer, startTestApi, type TestApi } from '../testing/api.ts';
import { eventually } from '../testing/eventually.ts';
import { type PrivatePostgres, startPrivatePostgres } from '../testing/private-servers.ts';

let postgres: PrivatePostgres;
let api: TestApi;
let key: string;

beforeAll(async () => {
  postgres = await startPrivatePostgres();
  await migrate(postgres.url);
  api = await startTestApi(postgres.url, { RELAY_DB_CONNECTIONS: '2', RELAY_INGEST_CONNECTIONS: '1' });
  key = (await api.call('POST', '/v1/keys', { body: { scopes: ['read'] } })).json.key;
});
afterAll(async () => {
  await api.stop();
  await postgres.stop('immediate');
});

const post = () => api.call('POST', '/v1/events', { raw: '{"type":"x"}' });

function expectUnavailable(answer: Answer, codes = ['database_unavailable']): void {
  expect([answer.status, codes.includes(answer.json?.code)]).toEqual([503, true]);
  expect(Number(answer.headers.get('retry-after'))).toBeGreaterThan(0);
}

async function countEvents(): Promise<number> {
  const pool = createPool({ url: postgres.url, purpose: 'general', max: 1, applicationName: 'test' });
  try {
    const { rows } = await pool.query('select count(*)::int as n from relay.events');
    return rows[0].n;
  } finally {
    await pool.end();
  }
}

describe('with two connections to the database', () => {
  it('fifty posts and reads at once all end, none hangs', async () => {
    const answers = await Promise.all(
      Array.from({ length: 50 }, (_, n) => (n % 2 ? post() : api.call('GET', '/v1/endpoints'))),
    );
    for (const { status } of answers) expect([200, 202, 503]).toContain(status);
    expect(answers.filter((answer) => answer.status < 300).length).toBeGreaterThan(40);
  });
});

describe('connections that are cut while in use (case O-24)', () => {
  it('cost a 503 at most; an event is stored exactly when its answer was 202, or its outcome was called unknown', async () => {
    const before = await countEvents();
    const killer = createPool({ url: postgres.url, purpose: 'general', max: 1, applicationName: 'killer' });
    const answers: Answer[] = [];
    const until = performance.now() + 2_000;
    const producers = Array.from({ length: 8 }, async () => {
      while (performance.now() < until) answers.push(await post());
    });
    for (let n = 0; n < 5; n++) {
      await killer.query(
        `select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'relay-api%' and datname = current_database()`,
      );
      await new Promise((resolve) => setTimeout(resolve, 300));
    }
    await Promise.all(producers);
    await killer.end();
    const accepted = answers.filter((answer) => answer.status === 202).length;
    const refused = answers.filter((answer) => answer.status !== 202);
    for (const answer of refused) expectUnavailable(answer, ['database_unavailable', 'commit_unknown']);
    const unknown = refused.filter((answer) => answer.json.code === 'commit_unknown').length;
    const stored = (await countEvents()) - before;
    expect(accepted).toBeGreaterThan(0);
    expect(stored).toBeGreaterThanOrEqual(accepted);
    expect(stored).toBeLessThanOrEqual(accepted + unknown);
    await eventually(async () => expect((await post()).status).toBe(202));
  });
});

describe('while the database is away', () => {
  it('every route says so with 503 and never anything else, and all works again by itself', async () => {
    await postgres.stop('immediate');
    const calls: [string, string, object][] = [
      ['POST', '/v1/events', { raw: '{"type":"x"}' }],
      ['POST', '/v1/events', { raw: '{"type":"x"}', headers: { 'idempotency-key': 'k' } }],
      ['GET', '/v1/endpoints', {}],
      ['GET', '/v1/endpoints', { key: 'relay_never_seen_before' }],
      ['POST', '/v1/endpoints', { body: { url: 'https://sink.example.com/in' } }],
      ['GET', '/v1/dlq', {}],
      ['POST', '/v1/dlq/replay', {}],
      ['GET', '/v1/tenants', {}],
      ['POST', '/v1/keys', { body: { scopes: ['read'] } }],
    ];
    for (const [method, path, options] of calls) {
      expectUnavailable(await api.call(method, path, options), ['database_unavailable', 'commit_unknown']);
    }
    expect((await api.call('GET', '/healthz', { key: null })).status).toBe(200);
    const ready = await api.call('GET', '/readyz', { key: null });
    expect([ready.status, ready.json.database.status, ready.json.queue.status]).toEqual([
      503,
      'fail',
      'skipped',
    ]);

    await postgres.start();
    await eventually(async () => {
      expect((await post()).status).toBe(202);
      expect((await api.call('GET', '/v1/endpoints', { key })).status).toBe(200);
    });
  });
});
