import { timingSafeEqual } from 'node:crypto';
import { LRUCache } from 'lru-cache';
import { SCOPES, type Scope } from '../../../lib/domain/vocabulary.ts';
import { hashApiKey, type KeyGrant } from '../../../lib/store/api-keys.ts';
import { PORTAL_PREFIX, type PortalGrant } from '../../../lib/store/portal-tokens.ts';
import { Problem } from './problem.ts';

/** Who a request comes from. */
export interface Principal {
  /** Null for a portal token, for the key of RELAY_ADMIN_KEY, and for everybody when authentication is off. */
  keyId: string | null;
  portalTokenId: string | null;
  /** Null for an admin, who may act for every tenant. */
  tenantId: string | null;
  scopes: readonly Scope[];
  /** The endpoints that a portal token is confined to; null for all of its tenant's. */
  endpointIds: ReadonlySet<string> | null;
  /** The limit of this key; null for the API's own. */
  requestsPerSecond: number | null;
}

/** How long a key that was revoked may still work, ms. */
const GRANT_TTL_MS = 5_000;
const MAX_CACHED = 10_000;

const ADMIN: Principal = {
  keyId: null,
  portalTokenId: null,
  tenantId: null,
  scopes: SCOPES,
  endpointIds: null,
  requestsPerSecond: null,
};

export interface AuthenticatorOptions {
  /** Look a key or a portal token up by its hash (see `findKeyGrant`, `findPortalGrant`). */
  lookUpKey: (keyHash: string) => Promise<KeyGrant | null>;
  lookUpToken: (tokenHash: string) => Promise<PortalGrant | null>;
  adminKey: string | null;
  /** False: everybody is an admin. */
  required: boolean;
}

interface Known {
  principal: Principal;
  expiresInMs: number | null;
}

/**
 * Tells who a request comes from, by its `authorization` header. Answers of the database are kept for up to 5 s, unknown keys too, both
 * in bounded numbers; keys are compared and kept by their hashes only, so that neither timing nor a heap dump tells them.
 */
export class Authenticator {
  readonly #options: AuthenticatorOptions;
  readonly #adminHash: Buffer | null;
  readonly #known = new LRUCache<string, Principal>({ max: MAX_CACHED, ttl: GRANT_TTL_MS });
  readonly #unknown = new LRUCache<string, true>({ max: MAX_CACHED, ttl: GRANT_TTL_MS });
  readonly #asking = new Map<string, Promise<Principal | null>>();

  constructor(options: AuthenticatorOptions) {
    this.#options = options;
    this.#adminHash = options.adminKey === null ? null : Buffer.from(hashApiKey(options.adminKey));
  }

  /** Throws a 401 Problem, or whatever the look-up threw. At once when the key is cached, so that a busy key costs no waiting. */
  authenticate(authorization: string | undefined): Principal | Promise<Principal> {
    if (!this.#options.required) return ADMIN;
    const key = bearerKey(authorization);
    const hash = hashApiKey(key);
    const known = this.#known.get(hash);
    if (known) return known;
    if (this.#adminHash && timingSafeEqual(Buffer.from(hash), this.#adminHash)) return ADMIN;
    if (this.#unknown.has(hash)) throw unusable();
    return this.#ask(hash, key.startsWith(PORTAL_PREFIX));
  }

  async #ask(hash: string, isPortalToken: boolean): Promise<Principal> {
    const asking = this.#asking.get(hash) ?? this.#lookUp(hash, isPortalToken);
    this.#asking.set(hash, asking);
    try {
      const principal = await asking;
      if (!principal) throw unusable();
      return principal;
    } finally {
      this.#asking.delete(hash);
    }
  }

  async #lookUp(hash: string, isPortalToken: boolean): Promise<Principal | null> {
    // What is read holds from before the question, so the answer's age counts from there.
    const askedAt = performance.now();
    const found = isPortalToken ? await this.#token(hash) : await this.#key(hash);
    const leftMs = GRANT_TTL_MS - (performance.now() - askedAt);
    if (!found) {
      this.#unknown.set(hash, true);
      return null;
    }
    const ttl = Math.floor(Math.min(leftMs, found.expiresInMs ?? leftMs));
    if (ttl > 0) this.#known.set(hash, found.principal, { ttl });
    return found.principal;
  }

  async #key(hash: string): Promise<Known | null> {
    const grant = await this.#options.lookUpKey(hash);
    if (!grant) return null;
    const { expiresInMs, ...rest } = grant;
    return { principal: { ...rest, portalTokenId: null, endpointIds: null }, expiresInMs };
  }

  async #token(hash: string): Promise<Known | null> {
    const grant = await this.#options.lookUpToken(hash);
    if (!grant) return null;
    const { tokenId, tenantId, scopes, endpointIds, expiresInMs } = grant;
    const principal = {
      keyId: null,
      portalTokenId: tokenId,
      tenantId,
      scopes,
      endpointIds: endpointIds && new Set(endpointIds),
      requestsPerSecond: null,
    };
    return { principal, expiresInMs };
  }
}

const BEARER = /^Bearer +(\S{1,512})$/i;

function bearerKey(authorization: string | undefined): string {
  if (authorization === undefined) {
    throw unauthorized('an API key is needed: send the header `authorization: Bearer <key>`');
  }
  const key = BEARER.exec(authorization)?.[1];
  if (key === undefined) throw unauthorized('the authorization header must read `Bearer <key>`');
  return key;
}

function unusable(): Problem {
  return unauthorized('the key is unknown, revoked or past its end');
}

function unauthorized(detail: string): Problem {
  return new Problem('unauthorized', detail, { headers: { 'www-authenticate': 'Bearer' } });
}

/** What a route asks of whoever calls it; `admin` is an admin key with the scope `manage`, `open` asks nothing. */
export type Access = Scope | 'admin' | 'open';

/** Throws a 403 Problem when the principal may not call a route. */
export function requireAccess(principal: Principal, access: Access): void {
  if (access === 'open') return;
  if (access === 'admin' && principal.tenantId !== null) {
    throw new Problem('forbidden', 'only an admin key may do this');
  }
  const scope = access === 'admin' ? 'manage' : access;
  if (!holds(principal, scope)) {
    throw new Problem('forbidden', `the key lacks the scope ${scope}`);
  }
}

function holds({ scopes }: Principal, scope: Scope): boolean {
  return scopes.includes(scope) || (scope === 'replay' && scopes.includes('manage'));
}
