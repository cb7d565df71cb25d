import { type ApiConfig, parseApiConfig } from '../../lib/config/api.ts';
import type { RunningService } from '../../lib/runtime/lifecycle.ts';
import { createLogger } from '../../lib/runtime/log.ts';
import { startApi } from '../api/api.ts';
import { requireDocumented } from './documented.ts';
import { givenSecretKeys } from './secret-keys.ts';

export const ADMIN_KEY = 'relay_test-admin-key-0123456789';

/** Every API of one test file shares them, as a fleet does. */
export const SECRET_KEYS = givenSecretKeys().setting;

export interface TestApi extends RunningService {
  url: string;
  config: ApiConfig;
  /** Calls a route as the admin, or with the key given; JSON in, JSON out. */
  call(method: string, path: string, options?: CallOptions): Promise<Answer>;
}

export interface CallOptions {
  body?: unknown;
  /** Sent instead of `body`, as it is. */
  raw?: string | Buffer;
  /** Null for no key at all. */
  key?: string | null;
  headers?: Record<string, string>;
}

export interface Answer {
  status: number;
  headers: Headers;
  text: string;
  /** The body parsed, or undefined when it is not JSON; read like a record. */
  // biome-ignore lint/suspicious/noExplicitAny: a test looks into answers of every shape
  json: any;
}

/** An API in this process, without Redis, on a port of its own; environment variables may be set over the test's defaults. */
export async function startTestApi(databaseUrl: string, env: Record<string, string> = {}): Promise<TestApi> {
  const config = parseApiConfig({
    DATABASE_URL: databaseUrl,
    RELAY_API_BIND: '127.0.0.1:0',
    RELAY_ADMIN_KEY: ADMIN_KEY,
    RELAY_SECRET_KEYS: SECRET_KEYS,
    RELAY_DB_CONNECTIONS: '4',
    RELAY_LOG_LEVEL: 'silent',
    ...env,
  });
  const log = createLogger({ service: 'api', level: config.logLevel, format: 'json' });
  const api = await startApi({ config, log, lameDuckMs: 0 });
  return { ...api, config, call: caller(api.url) };
}

/** Calls an API at `url`, which may be another process's. Throws when an answer is none that the document has. */
export function caller(url: string): TestApi['call'] {
  return async (method, path, options = {}) => {
    const { body, raw, key = ADMIN_KEY, headers = {} } = options;
    const payload = raw ?? (body === undefined ? undefined : JSON.stringify(body));
    const response = await fetch(new URL(path, url), {
      method,
      headers: {
        ...(key === null ? {} : { authorization: `Bearer ${key}` }),
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...headers,
      },
      ...(payload === undefined ? {} : { body: payload }),
    });
    const text = await response.text();
    requireDocumented(method, path, { status: response.status, headers: response.headers, text });
    return { status: response.status, headers: response.headers, text, json: parsed(text) };
  };
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
