import fc from 'fast-check';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { givenSecretKeys } from '../../services/testing/secret-keys.ts';
import { MAX_HEADERS_LENGTH } from '../domain/custom-headers.ts';
import { DEFAULT_TENANT_ID } from '../domain/limits.ts';
import { createDatabase, type Database } from './database.ts';
import { type ChangeResult, changeEndpoint, type EndpointChange } from './endpoint-change.ts';
import { readEndpointConfigs } from './endpoint-config.ts';
import { changedHeaders, headerColumns, openHeaders } from './endpoint-headers.ts';
import { createEndpoint, type Endpoint, type EndpointSettings } from './endpoints.ts';
import { createPool } from './pool.ts';
import { sealSecret } from './secret-box.ts';

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

async function givenEndpoint(settings: Partial<EndpointSettings> = {}): Promise<Endpoint> {
  const endpoint = await createEndpoint(db, keys, {
    tenantId: DEFAULT_TENANT_ID,
    secret: 'whsec_of_the_test',
    url: 'https://sink.example.test/in',
    eventTypes: [],
    description: '',
    signingScheme: 'relay',
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

const change = (endpoint: Endpoint, what: EndpointChange, headerPrefix = 'Relay'): Promise<ChangeResult> =>
  changeEndpoint(db, endpoint, what, { keys, overlapMs: 60_000, headerPrefix });

async function stored({ id }: { id: string }) {
  const config = (await readEndpointConfigs(pool, [id])).get(id)!;
  return openHeaders(keys, id, config.headers);
}

const headers = { Authorization: 'Bearer sesame', 'X-Key': 'k1' };

describe('custom headers in the database', () => {
  it('are sealed, values and all, and shown by name alone', async () => {
    const endpoint = await givenEndpoint({ headers });
    expect(endpoint.headerNames).toEqual(['Authorization', 'X-Key']);
    expect(JSON.stringify(endpoint)).not.toMatch(/sesame|k1/);
    expect(await stored(endpoint)).toEqual(headers);
    const { rows } = await pool.query('select e::text as whole from relay.endpoints e where id = $1', [
      endpoint.id,
    ]);
    expect(Buffer.from(rows[0].whole).includes('sesame')).toBe(false);
    expect(rows[0].whole).not.toContain(Buffer.from('sesame').toString('hex'));
  });

  it('are none when there are none, and can be taken away', async () => {
    const endpoint = await givenEndpoint({ headers });
    await change(endpoint, { headers: {} });
    const { rows } = await pool.query('select headers, header_names from relay.endpoints where id = $1', [
      endpoint.id,
    ]);
    expect(rows).toEqual([{ headers: null, header_names: [] }]);
    expect(await stored(endpoint)).toEqual({});
  });

  it('stay when a change does not name them', async () => {
    const endpoint = await givenEndpoint({ headers });
    await change(endpoint, { description: 'other' });
    expect(await stored(endpoint)).toEqual(headers);
  });

  it('keep the value that is stored where null stands, whatever the case of the name', async () => {
    const endpoint = await givenEndpoint({ headers });
    const result = await change(endpoint, { headers: { authorization: null, 'X-New': 'n' } });
    expect(result).toMatchObject({ kind: 'changed', endpoint: { headerNames: ['authorization', 'X-New'] } });
    expect(await stored(endpoint)).toEqual({ authorization: 'Bearer sesame', 'X-New': 'n' });
  });

  it('are refused where null stands and nothing is stored', async () => {
    const endpoint = await givenEndpoint({ headers });
    const result = await change(endpoint, { headers: { 'X-Unknown': null } });
    expect(result).toMatchObject({ kind: 'unfit_headers', field: 'headers.X-Unknown' });
    expect(await stored(endpoint)).toEqual(headers);
  });

  it('are refused when they are too long together with what is kept', async () => {
    const half = 'v'.repeat(1_000);
    const many = Object.fromEntries([1, 2, 3, 4, 5].map((n) => [`X-${n}`, half]));
    const endpoint = await givenEndpoint({ headers: many });
    const kept = Object.fromEntries(Object.keys(many).map((name) => [name, null]));
    const result = await change(endpoint, { headers: { ...kept, 'X-6': half, 'X-7': half } });
    expect(result).toMatchObject({ kind: 'unfit_headers', field: 'headers' });
    expect(JSON.stringify(result)).toContain(String(MAX_HEADERS_LENGTH));
  });

  it('of two changes at once keep what each of them left', async () => {
    const endpoint = await givenEndpoint({ headers: { 'X-A': '1', 'X-B': '1' } });
    await Promise.all([
      change(endpoint, { headers: { 'X-A': '2', 'X-B': null } }),
      change(endpoint, { headers: { 'X-A': null, 'X-B': '2' } }),
    ]);
    expect(await stored(endpoint)).toEqual({ 'X-A': '2', 'X-B': '2' });
  });
});

describe('the prefix of the headers', () => {
  it('is refused when a custom header begins with it, whichever of the two is changed', async () => {
    const endpoint = await givenEndpoint({ headers: { 'Acme-Key': 'k' } });
    const clash = { kind: 'unfit_headers', field: 'header_prefix' };
    expect(await change(endpoint, { headerPrefix: 'acme' })).toMatchObject(clash);
    expect(await change(endpoint, { headerPrefix: 'Other' })).toMatchObject({ kind: 'changed' });
    const named = await change(endpoint, { headers: { 'Other-Key': 'k' } });
    expect(named).toMatchObject({ kind: 'unfit_headers', field: 'headers.Other-Key' });
    const both = await change(endpoint, { headers: { 'X-Key': 'k' }, headerPrefix: 'Acme' });
    expect(both).toMatchObject({
      kind: 'changed',
      endpoint: { headerPrefix: 'Acme', headerNames: ['X-Key'] },
    });
  });

  it('is the configured one where the endpoint has none', async () => {
    const endpoint = await givenEndpoint({ headerPrefix: 'Own' });
    const configured = { headers: { 'Acme-Key': 'k' } };
    expect(await change(endpoint, configured, 'Acme')).toMatchObject({ kind: 'changed' });
    const without = await change(endpoint, { headerPrefix: null }, 'Acme');
    expect(without).toMatchObject({ kind: 'unfit_headers', field: 'header_prefix' });
  });

  it('does not stand in the way of other changes after the operator chose another', async () => {
    const endpoint = await givenEndpoint({ headers: { 'Acme-Key': 'k' } });
    expect(await change(endpoint, { description: 'x' }, 'Acme')).toMatchObject({ kind: 'changed' });
  });
});

describe('sealed headers', () => {
  const id = '00000000-0000-0000-0000-00000000000a';

  it('open to what they were, whatever their names', () => {
    const names = fc.oneof(fc.constant('__proto__'), fc.constant('1'), fc.stringMatching(/^[a-z_-]{1,9}$/));
    fc.assert(
      fc.property(fc.uniqueArray(fc.tuple(names, fc.string()), { selector: ([name]) => name }), (pairs) => {
        const given = Object.fromEntries(pairs);
        const { headers: sealed, header_names } = headerColumns(keys, id, given);
        expect(Object.entries(openHeaders(keys, id, sealed))).toEqual(Object.entries(given));
        expect(header_names).toEqual(Object.keys(given));
        const changed = changedHeaders(given, Object.fromEntries(pairs.map(([name]) => [name, null])));
        expect('headers' in changed && Object.entries(changed.headers)).toEqual(Object.entries(given));
      }),
    );
  });

  it('that hold no headers are refused without being repeated', () => {
    const sealed = sealSecret(keys, id, 'Bearer sesame');
    let message = '';
    try {
      openHeaders(keys, id, sealed);
    } catch (error) {
      message = String((error as Error).stack) + JSON.stringify(error);
    }
    expect(message).toContain('cannot be read');
    expect(message).not.toContain('sesame');
  });
});
