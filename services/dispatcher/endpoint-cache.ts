import { createSecretKey, type KeyObject } from 'node:crypto';
import { LRUCache } from 'lru-cache';
import type pg from 'pg';
import type { SecretKeys } from '../../lib/config/secret-keys.ts';
import { parseRetryPolicy, type RetryPolicy } from '../../lib/domain/backoff.ts';
import { privateSigningKey } from '../../lib/domain/key-pair.ts';
import { type SigningKey, signingKey } from '../../lib/domain/signing.ts';
import { CHAT_PLATFORMS } from '../../lib/domain/transports/chat-platform.ts';
import { isChat, mailAddress } from '../../lib/domain/transports/endpoint-rules.ts';
import type { ChatTransport, SigningScheme } from '../../lib/domain/vocabulary.ts';
import { type EndpointConfig, readEndpointConfigs } from '../../lib/store/endpoint-config.ts';
import { openHeaders } from '../../lib/store/endpoint-headers.ts';
import { openSecret } from '../../lib/store/secret-box.ts';
import { type HeaderPlan, headerPlan } from './outbound.ts';
import type { RatedEndpoint } from './rate-gate.ts';

const MAX_ENDPOINTS = 10_000;

/** An endpoint made ready for sending; its transport tells what else is known of it. */
export type Destination = HttpDestination | AddressedDestination;
export type AddressedDestination = ChatDestination | EmailDestination;

interface Sendable extends RatedEndpoint {
  version: number;
  enabled: boolean;
  maxInFlight: number;
  retryPolicy: RetryPolicy;
  requestTimeoutMs: number;
  connectTimeoutMs: number;
  idleTimeoutMs: number;
}

export interface HttpDestination extends Sendable {
  transport: 'http';
  url: URL;
  signingScheme: SigningScheme;
  /** Secrets before private keys, each newest first; a previous one stands here only while its overlap runs. */
  signingKeys: () => readonly SigningKey[];
  headers: HeaderPlan;
}

export interface ChatDestination extends Sendable {
  transport: ChatTransport;
  /** Of the chat, in the platform's own form. */
  address: string;
  /** What the platform gave out. Being a KeyObject, it prints and serialises as nothing. */
  token: KeyObject;
}

export interface EmailDestination extends Sendable {
  transport: 'email';
  /** The recipient of events; a finished message names its own. */
  address: string;
}

/** Why an endpoint cannot be sent to although it exists: what is stored of it cannot be used. */
export interface Unusable extends RatedEndpoint {
  version: number;
  unusable: string;
  /** Its attempts end before a request, and are spent like any others; absent when nothing of it could be read. */
  retryPolicy?: RetryPolicy;
}

export interface EndpointCacheOptions {
  pool: pg.Pool;
  secretKeys: SecretKeys;
  /** First part of the names of Relay's own headers, where an endpoint has none of its own. */
  headerPrefix: string;
  /** Relay's own. */
  version: string;
  retryPolicy: RetryPolicy;
  /** False: an endpoint's rate spaces what waits for it, and limits nothing. */
  rateLimit: boolean;
  requestTimeoutMs: number;
  connectTimeoutMs: number;
  idleTimeoutMs: number;
}

/** Above what any process can send. */
const UNLIMITED = 1e9;

/**
 * Endpoint configurations by id, checked for free: every claim returns the endpoint's version, and an entry of another version is read
 * again. So a change holds from the first claim after its commit.
 */
export class EndpointCache {
  readonly #options: EndpointCacheOptions;
  readonly #entries = new LRUCache<string, Destination | Unusable>({ max: MAX_ENDPOINTS });

  constructor(options: EndpointCacheOptions) {
    this.#options = options;
  }

  /** The entry of this version, or null when it has to be read. */
  get(id: string, version: number): Destination | Unusable | null {
    const entry = this.#entries.get(id);
    return entry && entry.version >= version ? entry : null;
  }

  /** Reads configurations in one query. Ids that do not exist stay absent. */
  async load(ids: readonly string[]): Promise<void> {
    const readAt = performance.now();
    const configs = await readEndpointConfigs(this.#options.pool, ids);
    for (const config of configs.values()) this.#entries.set(config.id, this.#prepare(config, readAt));
  }

  #prepare(config: EndpointConfig, readAt: number): Destination | Unusable {
    const { version } = config;
    try {
      return this.#destination(config, readAt);
    } catch (error) {
      // One endpoint's unusable row is that endpoint's trouble; the message names no secret.
      const policy = parseRetryPolicy(config.retryPolicy, this.#options.retryPolicy);
      return {
        ...this.#rated(config),
        version,
        unusable: error instanceof Error ? error.message : 'its configuration cannot be used',
        ...(policy.ok ? { retryPolicy: policy.policy } : {}),
      };
    }
  }

  #rated({ id, slotVersion, ratePerSecond, burst }: EndpointConfig): RatedEndpoint {
    const slotEveryMs = 1000 / ratePerSecond;
    return this.#options.rateLimit
      ? { id, slotVersion, slotEveryMs, ratePerSecond, burst }
      : { id, slotVersion, slotEveryMs, ratePerSecond: UNLIMITED, burst: UNLIMITED };
  }

  #destination(config: EndpointConfig, readAt: number): Destination {
    const sendable = this.#sendable(config);
    const { transport } = config;
    if (isChat(transport)) return { ...sendable, ...this.#chat(config, transport) };
    if (transport === 'email') return { ...sendable, transport, address: mailAddress(config.url) };
    const { secretKeys, headerPrefix, version } = this.#options;
    return {
      ...sendable,
      transport,
      url: new URL(config.url),
      signingScheme: config.signingScheme,
      signingKeys: untilTheyExpire(keysOf(config, secretKeys, readAt)),
      headers: headerPlan({
        prefix: config.headerPrefix ?? headerPrefix,
        version,
        custom: openHeaders(secretKeys, config.id, config.headers),
      }),
    };
  }

  #chat({ id, url, secret }: EndpointConfig, transport: ChatTransport) {
    const address = CHAT_PLATFORMS[transport].address.exec(url)?.[1];
    if (address === undefined) throw new Error(`its address is none of ${transport}`);
    const token = createSecretKey(openSecret(this.#options.secretKeys, id, secret), 'utf8');
    return { transport, address, token };
  }

  #sendable(config: EndpointConfig): Sendable {
    const { retryPolicy, ...defaults } = this.#options;
    const policy = parseRetryPolicy(config.retryPolicy, retryPolicy);
    if (!policy.ok) throw new Error(`its retry policy cannot be used: ${policy.reason}`);
    return {
      ...this.#rated(config),
      version: config.version,
      enabled: config.enabled,
      maxInFlight: config.maxInFlight,
      retryPolicy: policy.policy,
      requestTimeoutMs: Math.min(
        config.timeouts?.request_ms ?? Number.POSITIVE_INFINITY,
        defaults.requestTimeoutMs,
      ),
      connectTimeoutMs: Math.min(
        config.timeouts?.connect_ms ?? Number.POSITIVE_INFINITY,
        defaults.connectTimeoutMs,
      ),
      idleTimeoutMs: Math.min(config.timeouts?.idle_ms ?? Number.POSITIVE_INFINITY, defaults.idleTimeoutMs),
    };
  }
}

interface TimedKey {
  key: SigningKey;
  /** performance.now(). */
  expiresAt: number;
}

function keysOf(config: EndpointConfig, secretKeys: SecretKeys, readAt: number): TimedKey[] {
  const { secret, previousSecret, privateKey, previousPrivateKey } = config;
  const hmac = (opened: string) => signingKey(config.signingScheme, opened);
  const overlapping = (expiresInMs: number | null) => readAt + (expiresInMs ?? 0);
  return [
    { sealed: secret, prepare: hmac, expiresAt: Number.POSITIVE_INFINITY },
    { sealed: previousSecret, prepare: hmac, expiresAt: overlapping(config.previousSecretExpiresInMs) },
    { sealed: privateKey, prepare: privateSigningKey, expiresAt: Number.POSITIVE_INFINITY },
    {
      sealed: previousPrivateKey,
      prepare: privateSigningKey,
      expiresAt: overlapping(config.previousPrivateKeyExpiresInMs),
    },
  ].flatMap(({ sealed, prepare, expiresAt }) =>
    sealed ? [{ key: prepare(openSecret(secretKeys, config.id, sealed)), expiresAt }] : [],
  );
}

// Nothing bumps the version when an overlap ends, so the end is kept beside the key, on the monotonic clock.
function untilTheyExpire(all: readonly TimedKey[]): () => readonly SigningKey[] {
  const nextExpiry = () => Math.min(...timed.map(({ expiresAt }) => expiresAt));
  let timed = all;
  let keys = timed.map(({ key }) => key);
  let expiry = nextExpiry();
  return () => {
    if (performance.now() < expiry) return keys;
    timed = timed.filter(({ expiresAt }) => performance.now() < expiresAt);
    keys = timed.map(({ key }) => key);
    expiry = nextExpiry();
    return keys;
  };
}
