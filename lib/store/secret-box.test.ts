import { randomUUID } from 'node:crypto';
import fc from 'fast-check';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { givenSecretKeys } from '../../services/testing/secret-keys.ts';
import type { SecretKeys } from '../config/secret-keys.ts';
import { DEFAULT_TENANT_ID } from '../domain/limits.ts';
import type { SigningScheme } from '../domain/vocabulary.ts';
import { createDatabase } from './database.ts';
import { changeEndpoint } from './endpoint-change.ts';
import { readEndpointConfigs } from './endpoint-config.ts';
import { createEndpoint, deleteEndpoint } from './endpoints.ts';
import { createPool } from './pool.ts';
import { reencryptSecrets } from './reencrypt-secrets.ts';
import {
  openSecret,
  requireSecretKeys,
  SecretKeyMissingError,
  SecretUnreadableError,
  sealSecret,
} from './secret-box.ts';

const [first] = givenSecretKeys().keys;
const [second] = givenSecretKeys().keys;
const id = randomUUID();
const STANDARD_SECRET = `whsec_${Buffer.alloc(32, 7).toString('base64')}`;

describe('a sealed secret', () => {
  it('opens again to what it was, under any configured key', () => {
    fc.assert(
      fc.property(fc.string({ minLength: 1 }), (secret) => {
        const text = Buffer.from(secret).toString();
        expect(openSecret([second, first], id, sealSecret([first], id, text))).toBe(text);
      }),
    );
  });

  it('is never the same bytes twice, and never holds the secret', () => {
    const once = sealSecret([first], id, 'whsec_plain');
    expect(once.equals(sealSecret([first], id, 'whsec_plain'))).toBe(false);
    expect(once.includes('whsec_plain')).toBe(false);
  });

  it('names the missing key by its fingerprint', () => {
    const sealed = sealSecret([first], id, 'whsec_plain');
    expect(() => openSecret([second], id, sealed)).toThrow(SecretKeyMissingError);
    expect(() => openSecret([second], id, sealed)).toThrow(first.id.toString('hex'));
  });

  it('does not open for another endpoint', () => {
    const sealed = sealSecret([first], id, 'whsec_plain');
    expect(() => openSecret([first], randomUUID(), sealed)).toThrow(SecretUnreadableError);
  });

  it('does not open after any of its bits is flipped, or when it is cut', () => {
    const sealed = sealSecret([first], id, 'whsec_plain');
    for (let bit = 0; bit < sealed.length * 8; bit++) {
      const changed = Buffer.from(sealed);
      changed[bit >> 3]! ^= 1 << (bit & 7);
      expect(() => openSecret([first], id, changed)).toThrow(/stored/);
    }
    for (let length = 0; length < sealed.length; length++) {
      expect(() => openSecret([first], id, sealed.subarray(0, length))).toThrow(/stored/);
    }
  });
});

describe('secrets in the database', () => {
  let database: TestDatabase;
  let pool: pg.Pool;

  beforeAll(async () => {
    database = await createTestDatabase();
    pool = createPool({ url: database.url, purpose: 'general', max: 4, applicationName: 'test' });
  });
  afterAll(async () => {
    await pool.end();
    await database.drop();
  });

  const given = async (keys: SecretKeys, secret: string, signingScheme: SigningScheme = 'relay') => {
    const endpoint = await createEndpoint(createDatabase(pool), keys, { ...SETTINGS, signingScheme, secret });
    return endpoint!.id;
  };

  it('refuse a start without the key that they need, and only then', async () => {
    const endpointId = await given([first], 'whsec_one');
    await requireSecretKeys(pool, [second, first]);
    await expect(requireSecretKeys(pool, [second])).rejects.toThrow(SecretKeyMissingError);
    await deleteEndpoint(createDatabase(pool), { tenantId: DEFAULT_TENANT_ID, id: endpointId });
    await requireSecretKeys(pool, [second]);
  });

  it('are all written again under the first key, in batches, previous ones in their overlap included', async () => {
    const db = createDatabase(pool);
    const ids = await Promise.all(Array.from({ length: 7 }, (_, n) => given([first], `whsec_number_${n}`)));
    const ref = { tenantId: DEFAULT_TENANT_ID, id: ids[0]! };
    await changeEndpoint(
      db,
      ref,
      { secret: 'whsec_rotated' },
      { keys: [first], overlapMs: 60_000, headerPrefix: 'Relay' },
    );

    expect(await reencryptSecrets(db, [second, first], { batch: 3 })).toBe(7);
    expect(await reencryptSecrets(db, [second, first], { batch: 3 })).toBe(0);

    await requireSecretKeys(pool, [second]);
    const configs = await readEndpointConfigs(pool, ids);
    const rotated = configs.get(ids[0]!)!;
    expect(openSecret([second], ids[0]!, rotated.secret)).toBe('whsec_rotated');
    expect(openSecret([second], ids[0]!, rotated.previousSecret!)).toBe('whsec_number_0');
    for (const [n, endpointId] of ids.entries()) {
      if (n > 0)
        expect(openSecret([second], endpointId, configs.get(endpointId)!.secret)).toBe(`whsec_number_${n}`);
    }
  });

  const MORE_SEALED: Record<string, string> = {
    headers: `headers = $2, header_names = '{X-Key}'`,
    signing_key: `signing_key = $2, public_key = 'whpk_'`,
    previous_signing_key: `signing_key = $3, public_key = 'whpk_', previous_signing_key = $2,
      previous_signing_key_expires_at = now() + interval '1 min'`,
  };

  it.each(Object.keys(MORE_SEALED))(
    'include %s: no start without its key, and written again',
    async (column) => {
      const endpointId = await given([second], STANDARD_SECRET, 'standard');
      const sealed = (keys: SecretKeys) => sealSecret(keys, endpointId, '{"X-Key":"sesame"}');
      await pool.query(
        `update relay.endpoints set ${MORE_SEALED[column]} where id = $1 and $3::bytea is not null`,
        [endpointId, sealed([first]), sealed([second])],
      );
      await requireSecretKeys(pool, [second, first]);
      await expect(requireSecretKeys(pool, [second])).rejects.toThrow(SecretKeyMissingError);
      expect(await reencryptSecrets(createDatabase(pool), [second, first], { batch: 3 })).toBe(1);
      await requireSecretKeys(pool, [second]);
      const { rows } = await pool.query(`select ${column} as sealed from relay.endpoints where id = $1`, [
        endpointId,
      ]);
      expect(openSecret([second], endpointId, rows[0].sealed)).toBe('{"X-Key":"sesame"}');
    },
  );

  it('whose overlap has ended need no key, and go with the next re-encryption', async () => {
    const db = createDatabase(pool);
    const endpointId = await given([first], 'whsec_old_one');
    const ref = { tenantId: DEFAULT_TENANT_ID, id: endpointId };
    await changeEndpoint(
      db,
      ref,
      { secret: 'whsec_new_one' },
      { keys: [second, first], overlapMs: 60_000, headerPrefix: 'Relay' },
    );
    await pool.query(
      `update relay.endpoints set previous_secret_expires_at = now() - interval '1 s' where id = $1`,
      [endpointId],
    );
    await requireSecretKeys(pool, [second]);
    expect(await reencryptSecrets(db, [second], { batch: 10 })).toBe(1);
    const { rows } = await pool.query('select previous_secret from relay.endpoints where id = $1', [
      endpointId,
    ]);
    expect(rows[0].previous_secret).toBeNull();
  });
});

const SETTINGS = {
  tenantId: DEFAULT_TENANT_ID,
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
} as const;
