import { randomBytes } from 'node:crypto';
import { newSecret } from '../../lib/domain/signing.ts';
import { type ApiClient, ApiError } from './api-client.ts';
import { type RememberedEndpoint, recallEndpoint, rememberEndpoint } from './remembered.ts';

const DESCRIPTION = 'Demo endpoint of npm start';
export const DEMO_TYPES = 'demo.*';

interface Endpoint {
  id: string;
  url: string;
  description: string;
  enabled: boolean;
}

/**
 * The demo's one endpoint, the same over restarts: the one that was remembered, else one that is recognised by its description (the data
 * directory was lost, the database not), else a new one.
 */
export async function ensureDemoEndpoint(
  api: ApiClient,
  dataDir: string,
  url: string,
): Promise<RememberedEndpoint> {
  const remembered = recallEndpoint(dataDir);
  if (remembered && (await prepareKnown(api, remembered.id, url))) return remembered;
  const endpoint = await adoptOrCreate(api, url);
  rememberEndpoint(dataDir, endpoint);
  return endpoint;
}

/** False when there is no such endpoint any more. */
async function prepareKnown(api: ApiClient, id: string, url: string): Promise<boolean> {
  const endpoint = await findEndpoint(api, id);
  if (!endpoint) return false;
  if (endpoint.url !== url) await api.patch(`/v1/endpoints/${id}`, { url });
  if (!endpoint.enabled) await api.post(`/v1/endpoints/${id}/enable`);
  return true;
}

async function findEndpoint(api: ApiClient, id: string): Promise<Endpoint | null> {
  try {
    return await api.get<Endpoint>(`/v1/endpoints/${id}`);
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}

async function adoptOrCreate(api: ApiClient, url: string): Promise<RememberedEndpoint> {
  const secret = newSecret(randomBytes(32));
  const known = await findByDescription(api);
  if (known) {
    await api.patch(`/v1/endpoints/${known.id}`, { url, secret });
    if (!known.enabled) await api.post(`/v1/endpoints/${known.id}/enable`);
    return { id: known.id, secret };
  }
  const settings = { url, secret, description: DESCRIPTION, event_types: [DEMO_TYPES] };
  const { id } = await api.post<Endpoint>('/v1/endpoints', settings);
  return { id, secret };
}

async function findByDescription(api: ApiClient): Promise<Endpoint | null> {
  let cursor: string | null = null;
  do {
    const after: string = cursor === null ? '' : `&cursor=${encodeURIComponent(cursor)}`;
    const page: { items: Endpoint[]; next_cursor: string | null } = await api.get(
      `/v1/endpoints?limit=500${after}`,
    );
    const found = page.items.find((endpoint) => endpoint.description === DESCRIPTION);
    if (found) return found;
    cursor = page.next_cursor;
  } while (cursor !== null);
  return null;
}
