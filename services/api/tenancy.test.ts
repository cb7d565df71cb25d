import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { SCOPES } from '../../lib/domain/vocabulary.ts';
import { createPool } from '../../lib/store/pool.ts';
import { type Answer, startTestApi, type TestApi } from '../testing/api.ts';
import {
  type Belongings,
  givenBelongings,
  givenNothing,
  requestOf,
  type WellFormed,
} from '../testing/api-belongings.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { dumpOf } from '../testing/dump.ts';
import { namedIds } from '../testing/named-ids.ts';
import type { Route } from './http/route.ts';
import { printOpenApi } from './openapi-file.ts';
import { routes } from './routes.ts';

let database: TestDatabase;
let pool: pg.Pool;
let api: TestApi;
/** Somebody's things, and somebody else, who has a key and a token with everything that a tenant can have. */
let theirs: Belongings;
let own: Belongings;
let key: string;
let token: string;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'general', max: 2, applicationName: 'test' });
  api = await startTestApi(database.url);
  theirs = await givenBelongings(api, pool, await givenTenant());
  own = await givenBelongings(api, pool, await givenTenant());
  const made = await api.call('POST', '/v1/keys', { body: { tenant_id: own.tenants, scopes: [...SCOPES] } });
  key = made.json.key;
  token = (await api.call('POST', '/v1/portal-tokens', { key })).json.token;
});
afterAll(async () => {
  await api.stop();
  await pool.end();
  await database.drop();
});

async function givenTenant(): Promise<string> {
  return (await api.call('POST', '/v1/tenants', { body: { name: 'a tenant' } })).json.id;
}

const ask = ({ method, path, options }: WellFormed, more: object = {}): Promise<Answer> =>
  api.call(method, path, { key, ...options, ...more });

/** What an answer tells beyond the ids that the request named itself. */
function told({ status, text }: Answer, named: Belongings): { status: number; text: string } {
  let rest = text.replace(/"request_id":"[^"]*"/g, '');
  for (const id of Object.values(named)) rest = rest.replaceAll(id, 'the id');
  return { status, text: rest };
}

const guarded = routes.filter((route) => route.access !== 'open');
const ofOne = guarded.filter((route) => route.params);

/** The body of a request that names an id where the generic one does not. */
const message = (endpointId: string) => ({
  kind: 'webhook',
  idempotencyKey: randomUUID(),
  endpointId,
  event: 'order.paid',
  body: 'finished',
});

/** For each place in which a request may name something by its id: what is named there, and the body if it stands in one. */
const NAMED: Record<string, [kind: keyof Belongings, body?: (id: string) => unknown]> = {
  'postEvent header:relay-endpoint-id': ['endpoints'],
  'postBatch body:[].endpoint_id': ['endpoints', (id) => [{ type: 'x', payload: 1, endpoint_id: id }]],
  'postBatch body:[].endpointId': ['endpoints', (id) => [message(id)]],
  'postMessage body:endpointId': ['endpoints', message],
  'listDeliveries query:endpoint_id': ['endpoints'],
  'explainEvent query:endpoint_id': ['endpoints'],
  'listDeadLetters query:endpoint_id': ['endpoints'],
  'replayDeadLetters query:endpoint_id': ['endpoints'],
  'replayDeadLetters body:endpoint_id': ['endpoints', (id) => ({ endpoint_id: id })],
  'createReplay body:filter.endpoint_id': ['endpoints', (id) => ({ filter: { endpoint_id: id } })],
  'createKey body:tenant_id': ['tenants', (id) => ({ scopes: ['read'], tenant_id: id })],
  'createPortalToken body:endpoint_ids[]': ['endpoints', (id) => ({ endpoint_ids: [id] })],
  'listAudit query:resource_id': ['endpoints'],
};

/** A well-formed request about one's own things that names, in one place, a thing of these. */
function naming(place: string, ids: Belongings): WellFormed {
  const [operation, where = ''] = place.split(' ');
  const [kind, body] = NAMED[place]!;
  const request = requestOf(routes.find((route) => route.name === operation)!, own);
  const [part, name = ''] = where.split(/:(.*)/);
  const id = ids[kind];
  if (body) return { ...request, options: { body: body(id) } };
  return part === 'query'
    ? { ...request, path: `${request.path}?${name}=${id}` }
    : { ...request, options: { ...request.options, headers: { [name]: id } } };
}

const closedTo = ({ access }: Route) => access === 'admin';

describe('another tenant’s things', () => {
  // First, because the log of somebody who has named an id holds what they asked for.
  it('stand in no list', async () => {
    for (const route of guarded.filter(({ method, params }) => method === 'get' && !params)) {
      for (const bearer of [key, token]) {
        const { text } = await ask(requestOf(route, own), { key: bearer });
        for (const [kind, id] of Object.entries(theirs)) {
          expect([route.name, kind, text.includes(id)]).toEqual([route.name, kind, false]);
        }
      }
    }
  });

  it('are answered in the path as what does not exist, word for word, and nothing is done to them', async () => {
    const before = await dumpOf(pool, own.tenants);
    for (const route of ofOne) {
      for (const bearer of [key, token]) {
        const nothing = givenNothing();
        const foreign = told(await ask(requestOf(route, theirs), { key: bearer }), theirs);
        const absent = told(await ask(requestOf(route, nothing), { key: bearer }), nothing);
        expect([route.name, foreign]).toEqual([route.name, absent]);
        const barred = closedTo(route) || (bearer === token && !['read', 'replay'].includes(route.access));
        expect([route.name, foreign.status]).toEqual([route.name, barred ? 403 : 404]);
      }
    }
    expect(await dumpOf(pool, own.tenants)).toEqual(before);
  });

  it('are not there for an admin either who acts for one tenant, but for keys and tenants, which are an admin’s', async () => {
    const headers = { 'relay-tenant-id': own.tenants };
    const { key: admin } = (
      await api.call('POST', '/v1/keys', { body: { admin: true, scopes: [...SCOPES] } })
    ).json;
    const before = await dumpOf(pool, own.tenants);
    for (const route of ofOne.filter(({ path }) => !/^\/v1\/(keys|tenants)\//.test(path))) {
      const answer = await ask(requestOf(route, theirs), { key: admin, headers });
      expect([route.name, answer.status]).toEqual([route.name, 404]);
    }
    expect(await dumpOf(pool, own.tenants)).toEqual(before);
  });

  it('are answered in every other place of a request as what does not exist', async () => {
    const before = await dumpOf(pool, own.tenants);
    for (const place of Object.keys(NAMED).filter((one) =>
      routes.some(({ name }) => one.startsWith(`${name} `)),
    )) {
      const nothing = givenNothing();
      const foreign = told(await ask(naming(place, theirs)), theirs);
      const absent = told(await ask(naming(place, nothing)), nothing);
      expect([place, foreign]).toEqual([place, absent]);
      expect([place, foreign.status < 500, foreign.status !== 400]).toEqual([place, true, true]);
    }
    expect(await dumpOf(pool, own.tenants)).toEqual(before);
  });

  it('are known in every place in which a request can name them', () => {
    expect(namedIds(JSON.parse(printOpenApi())).filter((place) => !NAMED[place])).toEqual([]);
  });

  it('are not reached by naming their tenant, and whether it exists is not told', async () => {
    for (const route of guarded) {
      const request = requestOf(route, theirs);
      const answers = [theirs.tenants, randomUUID()].map((tenantId) =>
        ask(request, { headers: { 'relay-tenant-id': tenantId } }),
      );
      const [foreign, absent] = await Promise.all(answers);
      expect([route.name, foreign!.status, foreign!.json.code]).toEqual([route.name, 403, 'forbidden']);
      expect([route.name, told(foreign!, theirs)]).toEqual([route.name, told(absent!, theirs)]);
    }
  });

  it('are there for their owner all the same, so that the above was not about nothing', async () => {
    const headers = { 'relay-tenant-id': theirs.tenants };
    for (const route of ofOne.filter(({ method }) => method === 'get')) {
      const { method, path, options } = requestOf(route, theirs);
      expect([route.name, (await api.call(method, path, { ...options, headers })).status]).toEqual([
        route.name,
        200,
      ]);
    }
  });
});
