/** What a load test says to the API before the load: the same requests that any operator would make. */

export interface EndpointRequest {
  url: string;
  eventType: string;
  /** Absent: above anything that a machine delivers. */
  limits?: EndpointLimits;
}

export interface EndpointLimits {
  rate_per_second: number;
  burst: number;
  max_in_flight: number;
}

/** Above anything that a machine delivers: the gates are on and do not bind. */
const UNBOUND: EndpointLimits = { rate_per_second: 1_000_000, burst: 1_000_000, max_in_flight: 1_000 };

/** Makes a tenant of its own for the run, and a key for it. */
export async function createTenantKey(
  api: string,
  adminKey: string,
): Promise<{ tenantId: string; key: string }> {
  const tenant = await post<{ id: string }>(api, '/v1/tenants', adminKey, { name: 'load test' });
  const { key } = await post<{ key: string }>(api, '/v1/keys', adminKey, {
    tenant_id: tenant.id,
    scopes: ['events:write', 'read', 'manage'],
    name: 'load test',
  });
  return { tenantId: tenant.id, key };
}

/** Registers an endpoint and returns its id and signing secret. */
export async function createEndpoint(
  api: string,
  key: string,
  endpoint: EndpointRequest,
): Promise<{ id: string; secret: string }> {
  return post<{ id: string; secret: string }>(api, '/v1/endpoints', key, {
    url: endpoint.url,
    event_types: [endpoint.eventType],
    description: 'load test',
    ...(endpoint.limits ?? UNBOUND),
  });
}

async function post<T>(api: string, path: string, key: string, body: object): Promise<T> {
  const response = await fetch(api + path, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(10_000),
  });
  const text = await response.text();
  if (!response.ok) throw new Error(`POST ${path} answered ${response.status}: ${text.slice(0, 500)}`);
  return JSON.parse(text) as T;
}
