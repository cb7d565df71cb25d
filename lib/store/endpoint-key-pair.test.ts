import { randomBytes, randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { givenSecretKeys } from '../../services/testing/secret-keys.ts';
import { newKeyPair } from '../domain/key-pair.ts';
import { DEFAULT_TENANT_ID } from '../domain/limits.ts';
import { newSecret } from '../domain/signing.ts';
import type { SigningScheme } from '../domain/vocabulary.ts';
import { createDatabase, type Database } from './database.ts';
import { changeEndpoint, type EndpointChange } from './endpoint-change.ts';
import { readEndpointConfigs } from './endpoint-config.ts';
import { removeKeyPair, replaceKeyPair } from './endpoint-key-pair.ts';
import { createEndpoint, type Endpoint, findEndpoint } from './endpoints.ts';
import { createPool } from './pool.ts';
import { openSecret } from './secret-box.ts';

const { keys } = givenSecretKeys();
let database: TestDatabase;
let pool: pg.Pool;
let db: Database;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 4, applicationName: 'test' });
  db = createDatabase(pool);
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

async function givenEndpoint(signingScheme: SigningScheme = 'standard'): Promise<Endpoint> {
  const endpoint = await createEndpoint(db, keys, {
    tenantId: DEFAULT_TENANT_ID,
    secret: newSecret(randomBytes(32)),
    url: 'https://sink.example.test/in',
    eventTypes: [],
    description: '',
    signingScheme,
    headers: {},
    headerPrefix: null,
    ratePerSecond: 10,
    burst: 20,
    maxInFlight: 8,
    retryPolicy: null,
    timeouts: null,
  });
  return endpoint!;
}

async function replace(ref: { tenantId: string; id: string }, overlapMs = 60_000) {
  const pair = newKeyPair(randomBytes(32));
  return { pair, result: await replaceKeyPair(db, ref, pair, { keys, overlapMs }) };
}

const change = (endpoint: Endpoint, what: EndpointChange) =>
  changeEndpoint(db, endpoint, what, { keys, overlapMs: 60_000, headerPrefix: 'Relay' });

/** The private keys that sign now, newest first. */
async function privateKeys({ id }: Endpoint): Promise<string[]> {
  const config = (await readEndpointConfigs(pool, [id])).get(id)!;
  return [config.privateKey, config.previousPrivateKey].flatMap((sealed) =>
    sealed ? [openSecret(keys, id, sealed)] : [],
  );
}

const expire = ({ id }: Endpoint) =>
  pool.query(
    `update relay.endpoints set
       previous_signing_key_expires_at = case when previous_signing_key is not null then now() - interval '1 ms' end,
       previous_secret_expires_at = case when previous_secret is not null then now() - interval '1 ms' end
     where id = $1`,
    [id],
  );

describe("an endpoint's key pair", () => {
  it('is made on request: the public key shown, the private one sealed', async () => {
    const endpoint = await givenEndpoint();
    expect(endpoint).toMatchObject({ publicKey: null, previousKeyExpiresAt: null });
    const { pair, result } = await replace(endpoint);
    expect(result).toMatchObject({
      kind: 'changed',
      endpoint: { publicKey: pair.publicKey, previousKeyExpiresAt: null, version: 2 },
    });
    expect(await privateKeys(endpoint)).toEqual([pair.privateKey]);
    expect(JSON.stringify(result)).not.toContain('whsk_');
  });

  it('that is replaced goes on signing for the overlap, by the clock of the database, and no third ever signs', async () => {
    const endpoint = await givenEndpoint();
    const pairs = [];
    for (let n = 0; n < 3; n++) pairs.push(await replace(endpoint));
    const [, second, third] = pairs.map(({ pair }) => pair.privateKey);
    expect(await privateKeys(endpoint)).toEqual([third, second]);
    const shown = (await findEndpoint(db, endpoint))!;
    expect(shown.previousKeyExpiresAt!.getTime() - shown.updatedAt.getTime()).toBe(60_000);
    const left = (await readEndpointConfigs(pool, [endpoint.id])).get(endpoint.id)!;
    expect(left.previousPrivateKeyExpiresInMs).toBeGreaterThan(50_000);
    expect(left.previousPrivateKeyExpiresInMs).toBeLessThanOrEqual(60_000);

    await expire(endpoint);
    expect(await privateKeys(endpoint)).toEqual([third]);
    expect((await findEndpoint(db, endpoint))!.previousKeyExpiresAt).toBeNull();
  });

  it('of two that are made at once is one of them, with the other before it', async () => {
    const endpoint = await givenEndpoint();
    const made = await Promise.all([replace(endpoint), replace(endpoint)]);
    expect((await privateKeys(endpoint)).sort()).toEqual(made.map(({ pair }) => pair.privateKey).sort());
    expect((await findEndpoint(db, endpoint))!.version).toBe(3);
  });

  it('can be taken away, a previous one too, and twice', async () => {
    const endpoint = await givenEndpoint();
    await replace(endpoint);
    await replace(endpoint);
    expect(await removeKeyPair(db, endpoint)).toBe(true);
    expect(await privateKeys(endpoint)).toEqual([]);
    expect(await findEndpoint(db, endpoint)).toMatchObject({ publicKey: null, version: 4 });
    expect(await removeKeyPair(db, endpoint)).toBe(true);
    expect((await findEndpoint(db, endpoint))!.version).toBe(4);
  });

  it.each(['relay', 'stripe', 'github'] as const)('is refused under the scheme %s', async (scheme) => {
    const endpoint = await givenEndpoint(scheme);
    expect((await replace(endpoint)).result).toEqual({ kind: 'no_key_pair' });
    expect((await findEndpoint(db, endpoint))!.version).toBe(1);
  });

  it('goes when the endpoint takes a scheme that has none, and stays otherwise', async () => {
    const endpoint = await givenEndpoint();
    await replace(endpoint);
    await replace(endpoint);
    await change(endpoint, { description: 'x', secret: newSecret(randomBytes(32)) });
    expect(await privateKeys(endpoint)).toHaveLength(2);
    const result = await change(endpoint, { signingScheme: 'relay', secret: 'brought-along' });
    expect(result).toMatchObject({ kind: 'changed', endpoint: { publicKey: null } });
    expect(await privateKeys(endpoint)).toEqual([]);
  });

  it('is out of reach of another tenant', async () => {
    const endpoint = await givenEndpoint();
    const ref = { tenantId: randomUUID(), id: endpoint.id };
    expect((await replace(ref)).result).toEqual({ kind: 'not_found' });
    await replace(endpoint);
    expect(await removeKeyPair(db, ref)).toBe(false);
    expect(await privateKeys(endpoint)).toHaveLength(1);
  });
});

describe('the github scheme, whose header has room for one signature', () => {
  const previous = async ({ id }: Endpoint) =>
    (await readEndpointConfigs(pool, [id])).get(id)!.previousSecret;

  it('has no overlap: a new secret signs alone, and the answer does not promise otherwise', async () => {
    const endpoint = await givenEndpoint('github');
    const result = await change(endpoint, { secret: 'brought-along' });
    expect(result).toMatchObject({ kind: 'changed', endpoint: { previousSecretExpiresAt: null } });
    expect(await previous(endpoint)).toBeNull();
  });

  it('ends an overlap that runs, and takes an endpoint whose overlap has ended', async () => {
    for (const ended of [false, true]) {
      const endpoint = await givenEndpoint('relay');
      await change(endpoint, { secret: 'brought-along' });
      if (ended) await expire(endpoint);
      expect(await change(endpoint, { signingScheme: 'github' })).toMatchObject({ kind: 'changed' });
      expect(await previous(endpoint)).toBeNull();
    }
  });
});
