import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { givenSecretKeys } from '../../services/testing/secret-keys.ts';
import { DEFAULT_TENANT_ID } from '../domain/limits.ts';
import { createDatabase, type Database } from './database.ts';
import { changeEndpoint, type EndpointChange } from './endpoint-change.ts';
import { readEndpointConfigs } from './endpoint-config.ts';
import { disableEndpoint, enableEndpoint } from './endpoint-switches.ts';
import {
  createEndpoint,
  deleteEndpoint,
  type Endpoint,
  type EndpointSettings,
  findEndpoint,
  listEndpoints,
} from './endpoints.ts';
import { createPool } from './pool.ts';
import { openSecret } from './secret-box.ts';
import { createTenant, deleteTenant } from './tenants.ts';

const { keys } = givenSecretKeys();
const STANDARD_SECRET = `whsec_${Buffer.alloc(32, 7).toString('base64')}`;
let database: TestDatabase;
let pool: pg.Pool;
let db: Database;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 6, applicationName: 'test' });
  db = createDatabase(pool);
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

const SETTINGS: EndpointSettings = {
  url: 'https://sink.example.test/in',
  eventTypes: [],
  description: 'a sink',
  signingScheme: 'relay',
  headers: {},
  headerPrefix: null,
  ratePerSecond: 10,
  burst: 20,
  maxInFlight: 8,
  retryPolicy: null,
  timeouts: null,
};

async function givenEndpoint(
  settings: Partial<EndpointSettings & { tenantId: string; secret: string }> = {},
): Promise<Endpoint> {
  const all = { tenantId: DEFAULT_TENANT_ID, secret: STANDARD_SECRET, ...SETTINGS, ...settings };
  return (await createEndpoint(db, keys, all))!;
}

async function patterns(endpoint: { id: string }): Promise<string[]> {
  const { rows } = await pool.query(
    'select pattern from relay.subscriptions where endpoint_id = $1 order by pattern',
    [endpoint.id],
  );
  return rows.map((row) => row.pattern);
}

const change = (endpoint: Endpoint, what: EndpointChange, overlapMs = 60_000) =>
  changeEndpoint(db, endpoint, what, { keys, overlapMs, headerPrefix: 'Relay' });

async function changed(endpoint: Endpoint, what: EndpointChange): Promise<Endpoint> {
  const result = await change(endpoint, what);
  if (result.kind !== 'changed') throw new Error(result.kind);
  return result.endpoint;
}

async function config(endpoint: { id: string }) {
  return (await readEndpointConfigs(pool, [endpoint.id])).get(endpoint.id)!;
}

describe("an endpoint's subscriptions", () => {
  it('are everything when it names no event type', async () => {
    expect(await patterns(await givenEndpoint())).toEqual(['*']);
  });

  it('are stored in their shortest form, and shown as they were given', async () => {
    const endpoint = await givenEndpoint({ eventTypes: ['order.paid', 'order.*', 'user.made'] });
    expect(endpoint.eventTypes).toEqual(['order.paid', 'order.*', 'user.made']);
    expect(await patterns(endpoint)).toEqual(['order.*', 'user.made']);
  });

  it('follow a change of event types', async () => {
    const endpoint = await givenEndpoint({ eventTypes: ['order.*'] });
    await changed(endpoint, { eventTypes: ['user.*'] });
    expect(await patterns(endpoint)).toEqual(['user.*']);
  });

  it('are none while it is disabled, even when its event types change, and come back with it', async () => {
    const endpoint = await givenEndpoint({ eventTypes: ['order.*'] });
    await disableEndpoint(db, endpoint, 'operator');
    expect(await patterns(endpoint)).toEqual([]);
    await changed(endpoint, { eventTypes: ['user.*'] });
    expect(await patterns(endpoint)).toEqual([]);
    await enableEndpoint(db, endpoint);
    expect(await patterns(endpoint)).toEqual(['user.*']);
  });

  it('are gone with it', async () => {
    const endpoint = await givenEndpoint();
    expect(await deleteEndpoint(db, endpoint)).toBe(true);
    expect(await deleteEndpoint(db, endpoint)).toBe(false);
    expect(await patterns(endpoint)).toEqual([]);
    expect(await findEndpoint(db, endpoint)).toBeNull();
    expect((await config(endpoint)).deleted).toBe(true);
  });
});

describe("an endpoint's version", () => {
  it('rises with every change, so that a cached configuration is known to be old', async () => {
    const endpoint = await givenEndpoint();
    const versions = [
      endpoint.version,
      (await changed(endpoint, { description: 'other' })).version,
      (await disableEndpoint(db, endpoint, 'operator'))!.version,
      (await enableEndpoint(db, endpoint))!.version,
    ];
    await deleteEndpoint(db, endpoint);
    versions.push((await config(endpoint)).version);
    expect(versions).toEqual([1, 2, 3, 4, 5]);
  });

  it('stays when an endpoint is enabled or disabled twice', async () => {
    const endpoint = await givenEndpoint();
    expect((await enableEndpoint(db, endpoint))!.version).toBe(1);
    await disableEndpoint(db, endpoint, 'gone');
    const again = await disableEndpoint(db, endpoint, 'operator');
    expect(again).toMatchObject({ version: 2, disabledReason: 'gone' });
  });

  it('times waiting deliveries anew only when the pace really changes', async () => {
    const endpoint = await givenEndpoint();
    const slotVersion = async () => (await config(endpoint)).slotVersion;
    await changed(endpoint, { description: 'x', ratePerSecond: 10, burst: 20, maxInFlight: 8 });
    expect(await slotVersion()).toBe(1);
    await changed(endpoint, { ratePerSecond: 11 });
    expect(await slotVersion()).toBe(2);
    await changed(endpoint, { burst: 21 });
    await changed(endpoint, { maxInFlight: 9 });
    expect(await slotVersion()).toBe(4);
  });
});

describe('a change of an endpoint', () => {
  it('leaves alone what it does not name', async () => {
    const endpoint = await givenEndpoint({
      retryPolicy: { max_attempts: 3 },
      timeouts: { request_ms: 2_000 },
      eventTypes: ['a.b'],
    });
    const after = await changed(endpoint, { url: 'https://other.example.test/in' });
    const { version: _, updatedAt: __, ...rest } = endpoint;
    expect(after).toMatchObject({ ...rest, url: 'https://other.example.test/in' });
  });

  it('can take an override away', async () => {
    const endpoint = await givenEndpoint({ retryPolicy: { max_attempts: 3 }, timeouts: { idle_ms: 100 } });
    const after = await changed(endpoint, { retryPolicy: null, timeouts: null });
    expect(after).toMatchObject({ retryPolicy: null, timeouts: null });
  });

  it('does not reach an endpoint of another tenant', async () => {
    const endpoint = await givenEndpoint();
    const other = await createTenant(db, { name: 'other' });
    const ref = { tenantId: other.id, id: endpoint.id };
    const options = { keys, overlapMs: 1, headerPrefix: 'Relay' };
    expect(await changeEndpoint(db, ref, { description: 'x' }, options)).toEqual({ kind: 'not_found' });
    expect(await deleteEndpoint(db, ref)).toBe(false);
    expect(await disableEndpoint(db, ref, 'operator')).toBeNull();
    expect(await enableEndpoint(db, ref)).toBeNull();
    expect(await findEndpoint(db, ref)).toBeNull();
  });
});

describe('rotation of a secret', () => {
  const secretsOf = async (endpoint: { id: string }) => {
    const { secret, previousSecret } = await config(endpoint);
    return [secret, previousSecret].map((sealed) => sealed && openSecret(keys, endpoint.id, sealed));
  };

  it('keeps the old one for the overlap, by the clock of the database', async () => {
    const endpoint = await givenEndpoint({ secret: 'whsec_first' });
    const after = await changed(endpoint, { secret: 'whsec_second' });
    expect(await secretsOf(endpoint)).toEqual(['whsec_second', 'whsec_first']);
    expect(after.previousSecretExpiresAt!.getTime() - after.updatedAt.getTime()).toBe(60_000);
    const left = (await config(endpoint)).previousSecretExpiresInMs!;
    expect(left).toBeGreaterThan(50_000);
    expect(left).toBeLessThanOrEqual(60_000);
  });

  it('never leaves three: a second one drops the oldest', async () => {
    const endpoint = await givenEndpoint({ secret: 'whsec_first' });
    await changed(endpoint, { secret: 'whsec_second' });
    await changed(endpoint, { secret: 'whsec_third' });
    expect(await secretsOf(endpoint)).toEqual(['whsec_third', 'whsec_second']);
  });

  it('is over when its overlap has ended, although nothing swept', async () => {
    const endpoint = await givenEndpoint({ secret: 'whsec_first' });
    await changed(endpoint, { secret: 'whsec_second' });
    await pool.query(
      `update relay.endpoints set previous_secret_expires_at = now() - interval '1 ms' where id = $1`,
      [endpoint.id],
    );
    expect(await secretsOf(endpoint)).toEqual(['whsec_second', null]);
    expect((await config(endpoint)).previousSecretExpiresInMs).toBeNull();
    expect((await findEndpoint(db, endpoint))!.previousSecretExpiresAt).toBeNull();
  });

  it('ends with two secrets of the racers when two rotate at once', async () => {
    const endpoint = await givenEndpoint({ secret: 'whsec_first' });
    await Promise.all([
      changed(endpoint, { secret: 'whsec_racer_a' }),
      changed(endpoint, { secret: 'whsec_racer_b' }),
    ]);
    expect((await secretsOf(endpoint)).sort()).toEqual(['whsec_racer_a', 'whsec_racer_b']);
  });
});

describe('a change of the signing scheme', () => {
  it('is refused when the stored secret cannot sign under it', async () => {
    const endpoint = await givenEndpoint({ secret: 'not-for-standard' });
    const result = await change(endpoint, { signingScheme: 'standard' });
    expect(result).toMatchObject({ kind: 'unfit_secret', field: 'signing_scheme' });
    expect((await findEndpoint(db, endpoint))!.version).toBe(1);
  });

  it('passes with a secret that can, and drops the one that cannot', async () => {
    const endpoint = await givenEndpoint({ secret: 'not-for-standard' });
    await changed(endpoint, { signingScheme: 'standard', secret: STANDARD_SECRET });
    expect(await config(endpoint)).toMatchObject({ signingScheme: 'standard', previousSecret: null });
  });

  it('drops a previous secret that cannot sign under it', async () => {
    const endpoint = await givenEndpoint({ secret: 'not-for-standard' });
    await changed(endpoint, { secret: STANDARD_SECRET });
    expect((await config(endpoint)).previousSecret).not.toBeNull();
    await changed(endpoint, { signingScheme: 'standard' });
    expect((await config(endpoint)).previousSecret).toBeNull();
  });

  it('refuses a new secret that cannot', async () => {
    const endpoint = await givenEndpoint();
    const result = await change(endpoint, { signingScheme: 'standard', secret: 'whsec_short' });
    expect(result).toMatchObject({ kind: 'unfit_secret', field: 'secret' });
  });
});

describe('a list of endpoints', () => {
  it("goes through all of a tenant once, page by page, and through nobody else's", async () => {
    const tenant = await createTenant(db, { name: 'lister' });
    const made: string[] = [];
    for (let n = 0; n < 5; n++) made.push((await givenEndpoint({ tenantId: tenant.id })).id);
    const seen: string[] = [];
    for (let after: string | null = null; ; after = seen.at(-1)!) {
      const page: Endpoint[] = await listEndpoints(db, tenant.id, { after, limit: 2 });
      seen.push(...page.map((endpoint) => endpoint.id));
      if (page.length < 2) break;
    }
    expect(seen.toSorted()).toEqual(made.toSorted());
    expect(seen).toHaveLength(5);
  });
});

describe('the deletion of a tenant', () => {
  it('takes its endpoints and subscriptions with it', async () => {
    const tenant = await createTenant(db, { name: 'short-lived' });
    const endpoint = await givenEndpoint({ tenantId: tenant.id });
    expect(await deleteTenant(db, tenant.id)).toBe('deleted');
    expect(await deleteTenant(db, tenant.id)).toBe('not_found');
    expect((await config(endpoint)).deleted).toBe(true);
    expect(await patterns(endpoint)).toEqual([]);
  });

  it('leaves no living endpoint behind when one is made at the same moment', async () => {
    for (let round = 0; round < 20; round++) {
      const tenant = await createTenant(db, { name: 'raced' });
      const all = { tenantId: tenant.id, secret: STANDARD_SECRET, ...SETTINGS };
      const [made, deletion] = await Promise.all([
        createEndpoint(db, keys, all),
        deleteTenant(db, tenant.id),
      ]);
      expect(deletion).toBe('deleted');
      if (made) expect((await config(made)).deleted).toBe(true);
    }
  });

  it('is refused for the default tenant', async () => {
    expect(await deleteTenant(db, DEFAULT_TENANT_ID)).toBe('is_default');
  });
});
