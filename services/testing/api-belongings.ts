import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import type { Route } from '../api/http/route.ts';
import type { CallOptions, TestApi } from './api.ts';
import { givenDead, givenDelivery } from './given-deliveries.ts';

/** One of everything that a tenant may own, by the first part of the path that names it. */
export interface Belongings {
  tenants: string;
  endpoints: string;
  events: string;
  /** Dead. */
  deliveries: string;
  keys: string;
  'portal-tokens': string;
  replays: string;
}

/** One of everything for a tenant; made with the admin's key. */
export async function givenBelongings(api: TestApi, pool: pg.Pool, tenantId: string): Promise<Belongings> {
  const headers = { 'relay-tenant-id': tenantId };
  const made = async (path: string, body: object): Promise<string> => {
    const answer = await api.call('POST', path, { headers, body });
    if (answer.status !== 201) throw new Error(`${path}: ${answer.text}`);
    return answer.json.id;
  };
  const endpoints = await made('/v1/endpoints', { url: 'https://sink.example.com/in' });
  const { eventId, deliveryId } = await givenDelivery(pool, { endpointId: endpoints, tenantId });
  await givenDead(pool, deliveryId);
  return {
    tenants: tenantId,
    endpoints,
    events: eventId,
    deliveries: deliveryId,
    keys: await made('/v1/keys', { tenant_id: tenantId, scopes: ['read'] }),
    'portal-tokens': await made('/v1/portal-tokens', {}),
    replays: await givenReplayJob(pool, tenantId, endpoints),
  };
}

async function givenReplayJob(pool: pg.Pool, tenantId: string, endpointId: string): Promise<string> {
  const { rows } = await pool.query<{ id: string }>(
    `insert into relay.replay_jobs (id, tenant_id, status, endpoint_id, ended_by, rate_per_second, after_id)
     values ($1, $2, 'dead', $3, now(), 1, '00000000-0000-0000-0000-000000000000') returning id`,
    [randomUUID(), tenantId, endpointId],
  );
  return rows[0]!.id;
}

/** Names the same things as somebody's belongings, but nothing that exists. */
export function givenNothing(): Belongings {
  const some = () => randomUUID();
  return {
    tenants: some(),
    endpoints: some(),
    events: some(),
    deliveries: some(),
    keys: some(),
    'portal-tokens': some(),
    replays: some(),
  };
}

/** What a well-formed request of a route carries; a route that needs a body and has none here has no test yet. */
const BODIES: Record<string, (ids: Belongings) => unknown> = {
  createTenant: () => ({ name: 'made' }),
  createKey: () => ({ scopes: ['read'] }),
  changeKey: () => ({ name: 'changed' }),
  createEndpoint: () => ({ url: 'https://sink.example.com/in', secret: 'brought-along-secret' }),
  changeEndpoint: () => ({ description: 'changed' }),
  createReplay: () => ({ filter: {} }),
  postBatch: () => [{ type: 'order.paid', payload: { a: 1 } }],
  postMessage: ({ endpoints }) => ({
    kind: 'webhook',
    idempotencyKey: randomUUID(),
    endpointId: endpoints,
    event: 'order.paid',
    body: 'finished',
  }),
};

export interface WellFormed {
  method: string;
  path: string;
  options: CallOptions;
}

/** A well-formed request of a route about somebody's belongings. Throws when the tests know no such thing, or not what it carries. */
export function requestOf(route: Route, ids: Belongings): WellFormed {
  return { method: route.method.toUpperCase(), path: pathOf(route, ids), options: bodyOf(route, ids) };
}

function pathOf({ name, path }: Route, ids: Belongings): string {
  const [, , collection = ''] = path.split('/');
  return path.replace(/\{(\w+)\}/g, (_whole, parameter: string) => {
    const id = parameter === 'id' ? ids[collection as keyof Belongings] : undefined;
    if (id === undefined)
      throw new Error(`${name}: the tests have nothing for {${parameter}} of ${collection}`);
    return id;
  });
}

function bodyOf(route: Route, ids: Belongings): CallOptions {
  if (route.name === 'postEvent') return { raw: '{"type":"order.paid"}' };
  const body = BODIES[route.name]?.(ids);
  const isNeeded = route.handle === null || (route.body !== undefined && !route.bodyIsOptional);
  if (body === undefined && isNeeded) throw new Error(`${route.name}: the tests do not know what it carries`);
  return body === undefined ? {} : { body };
}
