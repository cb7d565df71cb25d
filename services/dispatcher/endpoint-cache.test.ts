import { randomBytes } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { RETRY_POLICY_DEFAULT } from '../../lib/domain/backoff.ts';
import { newKeyPair } from '../../lib/domain/key-pair.ts';
import { DEFAULT_TENANT_ID } from '../../lib/domain/limits.ts';
import { newSecret } from '../../lib/domain/signing.ts';
import { createDatabase, type Database } from '../../lib/store/database.ts';
import { changeEndpoint } from '../../lib/store/endpoint-change.ts';
import { replaceKeyPair } from '../../lib/store/endpoint-key-pair.ts';
import { createEndpoint, type Endpoint, type EndpointSettings } from '../../lib/store/endpoints.ts';
import { createPool } from '../../lib/store/pool.ts';
import { sealSecret } from '../../lib/store/secret-box.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { eventually } from '../testing/eventually.ts';
import { givenSecretKeys } from '../testing/secret-keys.ts';
import { EndpointCache, type HttpDestination, type Unusable } from './endpoint-cache.ts';

const { keys } = givenSecretKeys();
let database: TestDatabase;
let pool: pg.Pool;
let db: Database;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  db = createDatabase(pool);
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

async function givenEndpoint(settings: Partial<EndpointSettings> = {}): Promise<Endpoint> {
  const endpoint = await createEndpoint(db, keys, {
    tenantId: DEFAULT_TENANT_ID,
    secret: newSecret(randomBytes(32)),
    url: 'https://sink.example.test/in',
    eventTypes: [],
    description: '',
    signingScheme: 'standard',
    headers: {},
    headerPrefix: null,
    ratePerSecond: 10,
    burst: 20,
    maxInFlight: 8,
    retryPolicy: null,
    timeouts: null,
    ...settings,
  });
  return endpoint!;
}

async function loaded(endpoint: { id: string }): Promise<HttpDestination | Unusable> {
  const cache = new EndpointCache({
    pool,
    secretKeys: keys,
    headerPrefix: 'Relay',
    version: '1.2.3',
    retryPolicy: RETRY_POLICY_DEFAULT,
    rateLimit: true,
    requestTimeoutMs: 10_000,
    connectTimeoutMs: 5_000,
    idleTimeoutMs: 5_000,
  });
  await cache.load([endpoint.id]);
  return cache.get(endpoint.id, 1) as HttpDestination | Unusable;
}

async function destination(endpoint: { id: string }): Promise<HttpDestination> {
  const entry = await loaded(endpoint);
  if ('unusable' in entry) throw new Error(entry.unusable);
  return entry;
}

const kinds = ({ signingKeys }: HttpDestination) => signingKeys().map((key) => key.type);

describe('what signs for an endpoint', () => {
  const rotate = async (endpoint: Endpoint, overlapMs: { secret: number; pair: number }) => {
    const options = { keys, headerPrefix: 'Relay' };
    const pair = () => newKeyPair(randomBytes(32));
    await replaceKeyPair(db, endpoint, pair(), { ...options, overlapMs: overlapMs.pair });
    await replaceKeyPair(db, endpoint, pair(), { ...options, overlapMs: overlapMs.pair });
    const secret = newSecret(randomBytes(32));
    await changeEndpoint(db, endpoint, { secret }, { ...options, overlapMs: overlapMs.secret });
  };

  it('is its secret; during rotations both secrets and then both private keys', async () => {
    const endpoint = await givenEndpoint();
    expect(kinds(await destination(endpoint))).toEqual(['secret']);
    await rotate(endpoint, { secret: 60_000, pair: 60_000 });
    expect(kinds(await destination(endpoint))).toEqual(['secret', 'secret', 'private', 'private']);
  });

  it('ceases with each overlap, although the entry stays', async () => {
    const endpoint = await givenEndpoint();
    await rotate(endpoint, { secret: 60_000, pair: 300 });
    const entry = await destination(endpoint);
    const [, previous, newest] = entry.signingKeys();
    await eventually(() => expect(kinds(entry)).toEqual(['secret', 'secret', 'private']));
    expect(entry.signingKeys().slice(1)).toEqual([previous, newest]);
  });

  it('is the same list at every send, so that a send costs none', async () => {
    const entry = await destination(await givenEndpoint());
    expect(entry.signingKeys()).toBe(entry.signingKeys());
  });
});

describe('the headers of an endpoint', () => {
  it('are opened once, under its own prefix or the configured one', async () => {
    const own = await destination(await givenEndpoint({ headerPrefix: 'Acme', headers: { 'X-Key': 'k' } }));
    expect(own.headers).toMatchObject({
      userAgent: 'Acme/1.2.3 (webhooks)',
      names: { deliveryId: 'Acme-Delivery-Id' },
      custom: ['X-Key', 'k'],
    });
    const plain = await destination(await givenEndpoint());
    expect(plain.headers).toMatchObject({ names: { deliveryId: 'Relay-Delivery-Id' }, custom: [] });
  });
});

describe('an endpoint whose sealed columns hold something else', () => {
  it.each([
    [`headers = $2, header_names = '{X-Key}'`, /headers .* cannot be read/],
    [`signing_key = $2, public_key = 'whpk_'`, /no private key/],
    ['secret = $2', /cannot sign/],
  ])('cannot be sent to, and the reason repeats nothing of it: %s', async (spoiled, reason) => {
    const { id } = await givenEndpoint();
    const sealed = sealSecret(keys, id, 'Bearer sesame');
    await pool.query(`update relay.endpoints set ${spoiled} where id = $1`, [id, sealed]);
    const entry = await loaded({ id });
    expect(entry).toMatchObject({ unusable: expect.stringMatching(reason) });
    expect(JSON.stringify(entry)).not.toContain('sesame');
  });
});
