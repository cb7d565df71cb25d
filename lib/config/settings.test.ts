import { describe, expect, it } from 'vitest';
import { parseApiConfig } from './api.ts';
import { parseDispatcherConfig } from './dispatcher.ts';
import { ConfigurationError, type Env } from './env.ts';
import { parseReconcilerConfig } from './reconciler.ts';

const KEY = Buffer.alloc(32, 7).toString('base64');
const ENV: Env = { DATABASE_URL: 'postgres://relay@127.0.0.1/relay', RELAY_SECRET_KEYS: KEY };

function faultOf(parse: (env: Env) => unknown, env: Env): string {
  try {
    parse({ ...ENV, ...env });
  } catch (error) {
    if (error instanceof ConfigurationError) return error.message;
    throw error;
  }
  return 'nothing wrong';
}

const dispatcher = (env: Env) => parseDispatcherConfig({ ...ENV, ...env });
const api = (env: Env) => parseApiConfig({ ...ENV, ...env });

describe('a setting that cannot be', () => {
  it.each<[string, string, string]>([
    ['RELAY_MAX_IN_FLIGHT', '0', 'must lie between 1 and 10000'],
    ['RELAY_MAX_IN_FLIGHT', 'ten', 'must be a whole number'],
    ['RELAY_MAX_IN_FLIGHT', '-1', 'must be a whole number'],
    ['RELAY_MAX_IN_FLIGHT', '1.5', 'must be a whole number'],
    ['RELAY_BATCH_SIZE', '0', 'must lie between 1 and 128'],
    ['RELAY_BATCH_SIZE', '129', 'must lie between 1 and 128'],
    ['RELAY_CLAIM_CONNECTIONS', '0', 'must lie between 1 and 16'],
    ['RELAY_SETTLE_CONNECTIONS', '0', 'must lie between 1 and 16'],
    ['RELAY_RETRY_FACTOR', '0.5', 'must lie between 1 and 100'],
    ['RELAY_RETRY_FACTOR', 'NaN', 'must be a number'],
    ['RELAY_BROKER_URL', 'http://redis', 'must start with redis:// or rediss://'],
    ['RELAY_BROKER_SENTINELS', 'one:26379,two:port', 'must be host:port'],
    ['RELAY_METRICS_BIND', 'here:99999', 'must be host:port'],
    ['RELAY_ALLOW_PRIVATE_ENDPOINTS', 'yes please', 'must be true or false'],
    ['RELAY_ALLOWED_PORTS', '443,0', '"0" is not a port'],
    ['RELAY_ALLOWED_PORTS', '443;8443', '"443;8443" is not a port'],
    ['RELAY_HEADER_PREFIX', 'X Relay', 'letters, digits and dashes'],
    ['RELAY_LOG_LEVEL', 'loud', 'RELAY_LOG_LEVEL'],
    ['RELAY_SECRET_KEYS', 'c2hvcnQ=', '32 bytes in base64'],
  ])('%s=%s stops the process, named with its rule', (name, value, rule) => {
    const fault = faultOf(parseDispatcherConfig, { [name]: value });
    expect(fault).toContain(name);
    expect(fault).toContain(rule);
  });

  it('is told together with all others', () => {
    const fault = faultOf(parseDispatcherConfig, {
      RELAY_BATCH_SIZE: '0',
      RELAY_IDLE_POLL_MS: '0',
      DATABASE_URL: undefined,
    });
    for (const name of ['RELAY_BATCH_SIZE', 'RELAY_IDLE_POLL_MS', 'DATABASE_URL'])
      expect(fault).toContain(name);
  });

  it('and holds a secret is not printed', () => {
    const secret = 'c2VjcmV0';
    expect(
      faultOf(parseApiConfig, { RELAY_SECRET_KEYS: `${KEY},${secret}`, RELAY_ADMIN_KEY: 'short-secret' }),
    ).not.toMatch(new RegExp(`${secret}|short-secret`));
    expect(faultOf(parseApiConfig, { RELAY_ADMIN_KEY: 'short' })).toContain('at least 16 characters');
  });

  it('is missing where it must be given', () => {
    expect(faultOf(parseReconcilerConfig, { DATABASE_URL: '' })).toContain('DATABASE_URL: is required');
    expect(faultOf(parseDispatcherConfig, { RELAY_SECRET_KEYS: '' })).toContain(
      'RELAY_SECRET_KEYS: is required',
    );
  });
});

describe('settings that contradict each other', () => {
  it('a lease that a send may outlive is refused, naming both', () => {
    const fault = faultOf(parseDispatcherConfig, { RELAY_LEASE_TTL_SECS: '16' });
    expect(fault).toContain('RELAY_LEASE_TTL_SECS');
    expect(fault).toContain('RELAY_REQUEST_TIMEOUT_SECS');
    expect(dispatcher({ RELAY_LEASE_TTL_SECS: '17' }).leaseMs).toBe(17_000);
    expect(faultOf(parseDispatcherConfig, { RELAY_REQUEST_TIMEOUT_SECS: '30' })).toContain('be over 36');
  });

  it.each(['RELAY_CONNECT_TIMEOUT_SECS', 'RELAY_READ_TIMEOUT_SECS'])(
    '%s above the total is refused',
    (name) => {
      expect(faultOf(parseDispatcherConfig, { [name]: '11' })).toContain('RELAY_REQUEST_TIMEOUT_SECS');
    },
  );

  it('sentinels without a URL are refused, instead of running without Redis', () => {
    const fault = faultOf(parseReconcilerConfig, { RELAY_BROKER_SENTINELS: 'one:26379' });
    expect(fault).toContain('RELAY_BROKER_SENTINELS');
    expect(fault).toContain('RELAY_BROKER_URL');
  });

  it('a cap below the base is refused', () => {
    const fault = faultOf(parseDispatcherConfig, { RELAY_RETRY_CAP_SECS: '5' });
    expect(fault).toContain('RELAY_RETRY_CAP_SECS');
    expect(fault).toContain('RELAY_RETRY_BASE_MS');
  });
});

describe('the gates', () => {
  it('refuse a longest cooldown below the first', () => {
    const fault = faultOf(parseDispatcherConfig, { RELAY_BREAKER_MAX_COOLDOWN_SECS: '29' });
    expect(fault).toContain('RELAY_BREAKER_MAX_COOLDOWN_SECS');
    expect(fault).toContain('RELAY_BREAKER_COOLDOWN_SECS');
  });

  it('disable failing endpoints after days, or never', () => {
    expect(dispatcher({ RELAY_AUTO_DISABLE_DAYS: '2' }).autoDisableMs).toBe(2 * 86_400_000);
    expect(dispatcher({ RELAY_AUTO_DISABLE_DAYS: '0' }).autoDisableMs).toBeNull();
  });

  it('can be switched off one by one', () => {
    const off = dispatcher({ RELAY_BREAKER: 'off', RELAY_RATE_LIMIT: 'off' });
    expect([off.breaker.enabled, off.rateLimit]).toEqual([false, false]);
  });
});

describe('settings that are right', () => {
  it('are absent when they are empty', () => {
    expect(dispatcher({ RELAY_BATCH_SIZE: '', RELAY_BROKER_URL: '' })).toEqual(dispatcher({}));
    expect(dispatcher({}).broker).toBeNull();
  });

  it('name seconds and become milliseconds', () => {
    expect(dispatcher({ RELAY_LEASE_TTL_SECS: '60' })).toMatchObject({
      leaseMs: 60_000,
      requestTimeoutMs: 10_000,
    });
    expect(api({}).idempotencyRetentionMs).toBe(86_400_000);
  });

  it.each<[string, { host: string; port: number }]>([
    ['127.0.0.1:80', { host: '127.0.0.1', port: 80 }],
    [':8080', { host: '0.0.0.0', port: 8080 }],
    ['8080', { host: '0.0.0.0', port: 8080 }],
    ['[::1]:0', { host: '::1', port: 0 }],
    ['localhost:65535', { host: 'localhost', port: 65_535 }],
  ])('bind %s', (value, bind) => {
    expect(dispatcher({ RELAY_METRICS_BIND: value }).metricsBind).toEqual(bind);
  });

  it('say where Redis is', () => {
    const { broker } = dispatcher({
      RELAY_BROKER_URL: 'rediss://:word@redis/2',
      RELAY_BROKER_KEY_PREFIX: 'app:',
      RELAY_BROKER_SENTINELS: 'one:7000, two',
      RELAY_BROKER_SENTINEL_NAME: 'main',
    });
    expect(broker).toEqual({
      url: 'rediss://:word@redis/2',
      stream: 'relay:deliveries',
      group: 'relay-dispatchers',
      keyPrefix: 'app:',
      sentinels: [
        { host: 'one', port: 7000 },
        { host: 'two', port: 26_379 },
      ],
      sentinelName: 'main',
    });
  });

  it('reach past a pooler when told how', () => {
    expect(dispatcher({}).databaseDirectUrl).toBe(ENV.DATABASE_URL);
    expect(dispatcher({ RELAY_DATABASE_DIRECT_URL: 'postgres://direct/relay' }).databaseDirectUrl).toBe(
      'postgres://direct/relay',
    );
  });

  it('keep destinations public unless told otherwise, all at once or one by one', () => {
    expect(dispatcher({}).destination).toEqual({
      allowPrivate: false,
      requireHttps: true,
      allowedPorts: new Set([443]),
    });
    expect(dispatcher({ RELAY_ALLOW_PRIVATE_ENDPOINTS: 'on' }).destination).toEqual({
      allowPrivate: true,
      requireHttps: false,
      allowedPorts: 'any',
    });
    expect(
      dispatcher({
        RELAY_ALLOW_PRIVATE_ENDPOINTS: '1',
        RELAY_REQUIRE_HTTPS: 'TRUE',
        RELAY_ALLOWED_PORTS: '443, 8443',
      }).destination,
    ).toEqual({
      allowPrivate: true,
      requireHttps: true,
      allowedPorts: new Set([443, 8443]),
    });
    expect(dispatcher({ RELAY_ALLOWED_PORTS: '*' }).destination.allowedPorts).toBe('any');
  });

  it('hold several secret keys: the first encrypts, each has a name of its own', () => {
    const other = Buffer.alloc(32, 8).toString('base64');
    const { secretKeys } = api({ RELAY_SECRET_KEYS: `${other}, ${KEY}` });
    expect(secretKeys.map(({ key }) => key[0])).toEqual([8, 7]);
    expect(secretKeys[0].id.length).toBe(4);
    expect(secretKeys[1]?.id.equals(secretKeys[0].id)).toBe(false);
    expect(api({}).secretKeys[0].id.equals(secretKeys[1]!.id)).toBe(true);
  });

  it('ask for authentication unless it is switched off out loud', () => {
    expect(api({})).toMatchObject({ authRequired: true, adminKey: null });
    expect(api({ RELAY_AUTH: 'off' }).authRequired).toBe(false);
  });
});
