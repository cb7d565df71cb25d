import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import {
  death,
  givenClaimed,
  givenEndpoint,
  givenOne,
  givenOwed,
  givenTenant,
  lease,
  PROCESS,
} from '../../services/testing/given-queue.ts';
import { createExplainingPool } from '../../services/testing/query-plans.ts';
import type { HealthEvidence } from '../domain/endpoint-health.ts';
import { DEFAULT_TENANT_ID } from '../domain/limits.ts';
import { OPERATIONAL_EVENTS } from '../domain/vocabulary.ts';
import { claimByIds } from './claims.ts';
import { createDatabase } from './database.ts';
import { claimProbe, disableGoneEndpoint, recordEvidence } from './endpoint-health.ts';
import { disableEndpoint, enableEndpoint, resetBreaker } from './endpoint-switches.ts';
import { emitOperational } from './operational-events.ts';
import { createPool } from './pool.ts';
import { replayDeliveries } from './replay.ts';
import { finish } from './settle.ts';

let database: TestDatabase;
let pool: pg.Pool;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'hot', max: 4, applicationName: 'test' });
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});
beforeEach(async () => {
  await pool.query(
    'delete from relay.subscriptions; delete from relay.queue; delete from relay.deliveries; delete from relay.events',
  );
});

interface Told {
  endpointId: string;
  tenantId: string;
  type: string;
  contentType: string;
  body: { type: string; tenant_id: string; occurred_at: string; data: Record<string, unknown> };
}

/** Operational events that are owed, in order. */
async function told(): Promise<Told[]> {
  const { rows } = await pool.query<Omit<Told, 'body'> & { payload: Buffer }>(
    `select q.endpoint_id as "endpointId", e.tenant_id as "tenantId", e.type, e.content_type as "contentType", e.payload
     from relay.events e join relay.deliveries d on d.event_id = e.id join relay.queue q on q.delivery_id = d.id
     where e.type like '~%' order by d.id`,
  );
  return rows.map(({ payload, ...row }) => ({ ...row, body: JSON.parse(payload.toString('utf8')) }));
}

const hearsOf = (pattern: string, tenantId = DEFAULT_TENANT_ID) =>
  givenEndpoint(pool, { patterns: [pattern], tenantId });

const db = () => createDatabase(pool);
const ref = (id: string, tenantId = DEFAULT_TENANT_ID) => ({ tenantId, id });
const news = async () => (await told()).map(({ type, body }) => [type, body.data]);

describe('an operational event', () => {
  it('is owed like any other, to whoever subscribes to it by a marked pattern', async () => {
    const hearers = [await hearsOf('~*'), await hearsOf('~replay.*'), await hearsOf('~replay.finished')];
    await hearsOf('*');
    await hearsOf('~endpoint.*');
    await emitOperational(pool, DEFAULT_TENANT_ID, 'replay.finished', { replay_id: 'r', text: 'ü"\\' });
    const deliveries = await told();
    expect(deliveries.map((one) => one.endpointId).sort()).toEqual(hearers.sort());
    const { rows } = await pool.query('select count(*)::integer as events from relay.events');
    expect(rows).toEqual([{ events: 1 }]);
    expect(deliveries[0]).toMatchObject({
      tenantId: DEFAULT_TENANT_ID,
      type: '~replay.finished',
      contentType: 'application/json',
      body: {
        type: 'replay.finished',
        tenant_id: DEFAULT_TENANT_ID,
        occurred_at: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/),
        data: { replay_id: 'r', text: 'ü"\\' },
      },
    });
  });

  it('is not stored when nobody hears it', async () => {
    await hearsOf('*');
    await emitOperational(pool, DEFAULT_TENANT_ID, 'replay.finished', {});
    const { rows } = await pool.query('select from relay.events');
    expect(rows).toEqual([]);
  });

  it('reaches its own tenant, and those who hear of all', async () => {
    const [tenant, other] = [await givenTenant(pool), await givenTenant(pool)];
    const own = await hearsOf('~*', tenant);
    await hearsOf('~*', other);
    const operator = await hearsOf('~~endpoint.*');
    await hearsOf('~~replay.*');
    await emitOperational(pool, tenant, 'endpoint.enabled', {});
    const deliveries = await told();
    expect(deliveries.map((one) => [one.endpointId, one.tenantId]).sort()).toEqual(
      [
        [own, tenant],
        [operator, DEFAULT_TENANT_ID],
      ].sort(),
    );
    expect(deliveries.map((one) => one.body.tenant_id)).toEqual([tenant, tenant]);
  });

  it('is one event for a tenant that hears of itself and of all', async () => {
    await hearsOf('~*');
    await hearsOf('~~*');
    await emitOperational(pool, DEFAULT_TENANT_ID, 'endpoint.enabled', {});
    const { rows } = await pool.query('select count(*)::integer as events from relay.events');
    expect([rows, (await told()).length]).toEqual([[{ events: 1 }], 2]);
  });

  it('goes with the transaction that made it', async () => {
    await hearsOf('~*');
    const client = await pool.connect();
    await client.query('begin');
    await emitOperational(client, DEFAULT_TENANT_ID, 'replay.finished', {});
    await client.query('rollback');
    client.release();
    expect(await told()).toEqual([]);
  });

  it('stops nothing when it cannot be written', async () => {
    await hearsOf('~*');
    const endpoint = await hearsOf('order.*');
    const client = await pool.connect();
    try {
      const warnings: string[] = [];
      client.on('notice', (notice) => warnings.push(notice.message ?? ''));
      await client.query(
        `begin; alter table relay.events add constraint full_disk check (type <> '~endpoint.disabled')`,
      );
      await client.query(
        `update relay.endpoints set enabled = false, disabled_reason = 'operator' where id = '${endpoint}'`,
      );
      const { rows } = await client.query(`select enabled from relay.endpoints where id = '${endpoint}'`);
      expect(rows).toEqual([{ enabled: false }]);
      expect(warnings.join()).toMatch(/endpoint\.disabled .* could not be written.*full_disk/);
    } finally {
      await client.query('rollback');
      client.release();
    }
  });

  it('has a name of two parts, which is all that the schema matches', () => {
    for (const type of OPERATIONAL_EVENTS) expect(type.split('.')).toHaveLength(2);
  });
});

describe('an endpoint that is disabled', () => {
  it('is told of with its reason, once, but not to itself', async () => {
    const hearer = await hearsOf('~*');
    const endpoint = await hearsOf('~*');
    await disableEndpoint(db(), ref(endpoint), 'operator');
    await disableEndpoint(db(), ref(endpoint), 'operator');
    expect(await news()).toEqual([['~endpoint.disabled', { endpoint_id: endpoint, reason: 'operator' }]]);
    expect((await told()).map((one) => one.endpointId)).toEqual([hearer]);
  });

  it('is not told to itself when it answers 410 either', async () => {
    const endpoint = await hearsOf('~*');
    await disableGoneEndpoint(pool, endpoint);
    expect(await told()).toEqual([]);
    await hearsOf('~endpoint.disabled');
    const gone = await hearsOf('order.*');
    await disableGoneEndpoint(pool, gone);
    expect(await news()).toEqual([['~endpoint.disabled', { endpoint_id: gone, reason: 'gone' }]]);
  });

  it('is told of again when it is enabled, and of nothing else', async () => {
    const endpoint = await hearsOf('order.*');
    await disableEndpoint(db(), ref(endpoint), 'operator');
    await pool.query(
      `update relay.endpoints set breaker_state = 'open', breaker_until = now(), breaker_trips = 1, breaker_streak = 1 where id = $1`,
      [endpoint],
    );
    await hearsOf('~*');
    await enableEndpoint(db(), ref(endpoint));
    expect(await news()).toEqual([['~endpoint.enabled', { endpoint_id: endpoint }]]);
  });
});

const POLICY = {
  breaker: { enabled: true, threshold: 2, cooldownMs: 30_000, maxCooldownMs: 300_000 },
  autoDisableMs: null,
};

async function trips(endpoint: string): Promise<number> {
  const { rows } = await pool.query('select breaker_trips as trips from relay.endpoints where id = $1', [
    endpoint,
  ]);
  return rows[0].trips;
}

async function report(endpoint: string, kinds: HealthEvidence['kind'][], probe: string | null = null) {
  const era = await trips(endpoint);
  const evidence = kinds.map((kind) => ({
    endpointId: endpoint,
    kind,
    success: kind === 'alive',
    trips: era,
    probe,
    retryAfterMs: null,
  }));
  await recordEvidence(pool, evidence, POLICY);
}

async function probes(endpoint: string): Promise<string> {
  await pool.query('update relay.endpoints set breaker_until = now() where id = $1', [endpoint]);
  const token = randomUUID();
  await claimProbe(pool, { endpointId: endpoint, trips: await trips(endpoint), token, probeMs: 20_000 });
  return token;
}

describe('a breaker', () => {
  it('is told of when it opens, once for each streak, and when a probe closes it', async () => {
    await hearsOf('~endpoint.*');
    const endpoint = await hearsOf('order.*');
    await report(endpoint, ['failing']);
    expect(await news()).toEqual([]);
    await report(endpoint, ['failing']);
    await report(endpoint, ['failing'], await probes(endpoint));
    await report(endpoint, ['unclear'], await probes(endpoint));
    await report(endpoint, ['alive'], await probes(endpoint));
    await report(endpoint, ['alive', 'failing', 'alive']);
    await report(endpoint, ['failing', 'failing']);
    const until = expect.stringMatching(/Z$/);
    expect(await news()).toEqual([
      ['~endpoint.opened', { endpoint_id: endpoint, failures: 2, until }],
      ['~endpoint.recovered', { endpoint_id: endpoint, by: 'probe' }],
      ['~endpoint.opened', { endpoint_id: endpoint, failures: 2, until }],
    ]);
  });

  it('is told of twice when one batch closes and opens it again', async () => {
    await hearsOf('~endpoint.*');
    const endpoint = await hearsOf('order.*');
    await report(endpoint, ['failing', 'failing']);
    const probe = await probes(endpoint);
    const era = await trips(endpoint);
    const item = { endpointId: endpoint, trips: era, retryAfterMs: null };
    await recordEvidence(
      pool,
      [
        { ...item, kind: 'alive', success: true, probe },
        { ...item, kind: 'failing', success: false, probe: null },
        { ...item, kind: 'failing', success: false, probe: null },
      ],
      POLICY,
    );
    expect((await news()).map(([type]) => type)).toEqual([
      '~endpoint.opened',
      '~endpoint.recovered',
      '~endpoint.opened',
    ]);
  });

  it('that an operator resets has recovered by the operator; one that is closed is no news', async () => {
    await hearsOf('~endpoint.*');
    const endpoint = await hearsOf('order.*');
    await report(endpoint, ['failing']);
    await resetBreaker(db(), ref(endpoint));
    expect(await news()).toEqual([]);
    await report(endpoint, ['failing', 'failing']);
    await resetBreaker(db(), ref(endpoint));
    expect((await news()).at(-1)).toEqual(['~endpoint.recovered', { endpoint_id: endpoint, by: 'operator' }]);
  });
});

/** Ends deliveries dead in one statement. */
async function bury(
  ids: readonly string[],
  reason: 'permanent_failure' | 'expired' | 'cancelled' = 'permanent_failure',
) {
  const claims = await claimByIds(pool, [...ids], lease());
  await finish(
    pool,
    claims.map((claim) => death(claim, reason)),
    PROCESS,
  );
}

describe('a delivery that died', () => {
  it('is told of with its reason and its last answer', async () => {
    const hearer = await hearsOf('~delivery.dead');
    const endpoint = await hearsOf('order.*');
    const id = await givenOne(pool, {
      targetEndpointId: endpoint,
      payload: Buffer.from('{"secret":"sesame"}'),
    });
    await bury([id]);
    const [event, ...others] = await told();
    expect(others).toEqual([]);
    expect(event?.endpointId).toBe(hearer);
    expect(event?.body.data).toEqual({
      count: 1,
      reasons: { permanent_failure: 1 },
      deliveries: [
        {
          delivery_id: id,
          event_id: `${id.slice(0, 32)}0000`,
          event_type: 'order.paid',
          endpoint_id: endpoint,
          reason: 'permanent_failure',
          last_class: 'permanent',
          last_http_status: 404,
          died_at: expect.stringMatching(/Z$/),
        },
      ],
    });
    expect(JSON.stringify(event)).not.toContain('sesame');
  });

  it('is told of again when it dies again after a replay', async () => {
    await hearsOf('~delivery.*');
    const id = await givenOne(pool, { targetEndpointId: await hearsOf('order.*') });
    await bury([id]);
    await replayDeliveries(pool, [id]);
    await bury([id]);
    expect((await told()).map(({ body }) => body.data.count)).toEqual([1, 1]);
  });

  it('is no news when it was cancelled', async () => {
    await hearsOf('~*');
    const ids = await givenOwed(pool, 2, { endpointId: await hearsOf('order.*') });
    await bury([ids[0]!], 'cancelled');
    expect(await told()).toEqual([]);
    const claimed = await givenClaimed(pool, ids[1]!);
    await pool.query('update relay.queue set cancel_requested = true where delivery_id = $1', [ids[1]]);
    await finish(pool, [death(claimed)], PROCESS);
    expect(await told()).toEqual([]);
  });

  it('is not told of when it was one of an operational event: the next would die as well', async () => {
    const hearer = await hearsOf('~*');
    await emitOperational(pool, DEFAULT_TENANT_ID, 'replay.finished', {});
    const { rows } = await pool.query<{ id: string }>(
      'select id from relay.deliveries where endpoint_id = $1',
      [hearer],
    );
    const ordinary = await givenOne(pool, { targetEndpointId: await hearsOf('order.*') });
    await pool.query('update relay.queue set due_at = now(), look_at = now()');
    await bury([rows[0]!.id]);
    expect(await told()).toEqual([]);
    const again = await replayDeliveries(pool, [rows[0]!.id]);
    await bury([...again.replayed, ordinary]);
    const [event, ...others] = await told();
    expect([event?.body.data.count, others]).toEqual([1, []]);
  });

  it('shares one event with all that died in the same statement, which names 100 and counts them all', async () => {
    const [tenant, deaf] = [await givenTenant(pool), await givenTenant(pool)];
    await hearsOf('~*');
    await hearsOf('~delivery.*', tenant);
    const ids = await givenOwed(pool, 120, { endpointId: await hearsOf('order.*') });
    const theirs = await hearsOf('order.*', tenant);
    const others = await givenOwed(pool, 3, { endpointId: theirs, event: { tenantId: tenant } });
    const unheard = await hearsOf('order.*', deaf);
    const quiet = await givenOwed(pool, 2, { endpointId: unheard, event: { tenantId: deaf } });
    await bury([...ids, ...others, ...quiet]);
    const events = await told();
    expect(events.map(({ tenantId, body }) => [tenantId, body.data.count, body.data.reasons])).toEqual(
      expect.arrayContaining([
        [DEFAULT_TENANT_ID, 120, { permanent_failure: 120 }],
        [tenant, 3, { permanent_failure: 3 }],
      ]),
    );
    expect(events).toHaveLength(2);
    const many = events.find((event) => event.tenantId === DEFAULT_TENANT_ID)?.body.data.deliveries;
    expect((many as { delivery_id: string }[]).map((one) => one.delivery_id)).toEqual(
      [...ids].sort().slice(0, 100),
    );
  });
});

describe('telling', () => {
  it('looks subscribers up by their index while the table is young, and reads no event when nobody hears', async () => {
    const young = await createTestDatabase();
    const { pool: explaining, plans } = await createExplainingPool(young.url, 'hot');
    try {
      await explaining.query('set auto_explain.log_nested_statements = on');
      await explaining.query(
        `insert into relay.endpoints (url, tenant_id, secret) select 'https://sink.example.test/', $1, '\\x00' from generate_series(1, 3000)`,
        [DEFAULT_TENANT_ID],
      );
      await explaining.query(
        `insert into relay.subscriptions (tenant_id, pattern, endpoint_id) select tenant_id, '*', id from relay.endpoints`,
      );
      plans.length = 0;
      for (let round = 0; round < 8; round += 1) {
        await explaining.query(
          `insert into relay.dead_letters (delivery_id, endpoint_id, event_id, tenant_id, reason)
           select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), $1, 'expired' from generate_series(1, 100)`,
          [DEFAULT_TENANT_ID],
        );
      }
      const scans = plans.flatMap((plan) => plan.scans);
      expect(scans.filter((scan) => scan.table === 'events')).toEqual([]);
      const probes = scans.filter((scan) => scan.table === 'subscriptions');
      expect(new Set(probes.map((scan) => scan.index))).toEqual(
        new Set(['subscriptions_pkey', 'subscriptions_all_tenants']),
      );
      for (const probe of probes)
        expect([probe.condition, probe.rowsRemoved]).toEqual([expect.stringContaining('pattern'), 0]);
    } finally {
      await explaining.end();
      await young.drop();
    }
  });
});
