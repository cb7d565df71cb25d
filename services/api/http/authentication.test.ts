import { describe, expect, it } from 'vitest';
import { SCOPES } from '../../../lib/domain/vocabulary.ts';
import { hashApiKey, type KeyGrant } from '../../../lib/store/api-keys.ts';
import type { PortalGrant } from '../../../lib/store/portal-tokens.ts';
import { type Access, Authenticator, type Principal, requireAccess } from './authentication.ts';

const GRANT: KeyGrant = {
  keyId: 'k',
  tenantId: 't',
  scopes: ['read'],
  requestsPerSecond: null,
  expiresInMs: null,
};
const PORTAL_GRANT: PortalGrant = {
  tokenId: 'p',
  tenantId: 't',
  scopes: ['read', 'replay'],
  endpointIds: ['e'],
  expiresInMs: 60_000,
};
const ADMIN_KEY = 'an-admin-key-of-length';

/** Knows one key, and counts how often it is asked. */
function givenAuthenticator(answer: (keyHash: string) => Promise<KeyGrant | null> = onlyGoodKey) {
  const asked: string[] = [];
  const lookUp = (keyHash: string) => {
    asked.push(keyHash);
    return answer(keyHash);
  };
  const lookUpToken = async (hash: string) => {
    asked.push(hash);
    return hash === hashApiKey('rlp_good') ? PORTAL_GRANT : null;
  };
  const options = { lookUpKey: lookUp, lookUpToken, adminKey: ADMIN_KEY, required: true };
  return { asked, authenticator: new Authenticator(options) };
}

const onlyGoodKey = async (keyHash: string) => (keyHash === hashApiKey('good') ? GRANT : null);
const bearer = (key: string) => `Bearer ${key}`;

describe('an authenticator', () => {
  it('asks the database once for a key that a hundred requests bring at once, and not again while it is cached', async () => {
    const { asked, authenticator } = givenAuthenticator();
    const together = Array.from({ length: 100 }, () => authenticator.authenticate(bearer('good')));
    for (const principal of await Promise.all(together)) expect(principal.keyId).toBe('k');
    expect(authenticator.authenticate(bearer('good'))).toMatchObject({ tenantId: 't', scopes: ['read'] });
    expect(asked).toEqual([hashApiKey('good')]);
  });

  it('asks once for an unknown key too', async () => {
    const { asked, authenticator } = givenAuthenticator();
    await expect(authenticator.authenticate(bearer('bad'))).rejects.toMatchObject({ code: 'unauthorized' });
    expect(() => authenticator.authenticate(bearer('bad'))).toThrow(/unknown/);
    expect(asked).toHaveLength(1);
  });

  it('keeps a bounded number of unknown keys, so that a stranger cannot fill the process', async () => {
    const { asked, authenticator } = givenAuthenticator();
    const tried = async (n: number) => {
      try {
        await authenticator.authenticate(bearer(`bad-${n}`));
      } catch {}
    };
    for (let n = 0; n < 10_001; n++) await tried(n);
    await tried(10_000);
    expect(asked).toHaveLength(10_001);
    await tried(0);
    expect(asked).toHaveLength(10_002);
  });

  it('does not take a failed question for an answer', async () => {
    let away = true;
    const { authenticator } = givenAuthenticator(async (keyHash) => {
      if (away) throw new Error('the database is away');
      return onlyGoodKey(keyHash);
    });
    await expect(authenticator.authenticate(bearer('good'))).rejects.toThrow('the database is away');
    away = false;
    expect(await authenticator.authenticate(bearer('good'))).toMatchObject({ keyId: 'k' });
  });

  it('does not keep a key past its end', async () => {
    const { asked, authenticator } = givenAuthenticator(async () => ({ ...GRANT, expiresInMs: 0.5 }));
    await authenticator.authenticate(bearer('good'));
    await authenticator.authenticate(bearer('good'));
    expect(asked).toHaveLength(2);
  });

  it('knows the admin key without asking', () => {
    const { asked, authenticator } = givenAuthenticator();
    expect(authenticator.authenticate(bearer(ADMIN_KEY))).toEqual({
      keyId: null,
      portalTokenId: null,
      tenantId: null,
      scopes: SCOPES,
      endpointIds: null,
      requestsPerSecond: null,
    });
    expect(asked).toEqual([]);
  });

  it.each([
    undefined,
    '',
    'Bearer',
    'Bearer ',
    'Basic good',
    'good',
    'Bearer good extra',
    `Bearer ${'x'.repeat(513)}`,
  ])('refuses the header %j without asking', (header) => {
    const { asked, authenticator } = givenAuthenticator();
    expect(() => authenticator.authenticate(header)).toThrow(
      expect.objectContaining({ code: 'unauthorized', headers: { 'www-authenticate': 'Bearer' } }),
    );
    expect(asked).toEqual([]);
  });

  it('tells a portal token from a key by its beginning, and asks for it among the tokens only', async () => {
    const { asked, authenticator } = givenAuthenticator();
    expect(await authenticator.authenticate(bearer('rlp_good'))).toEqual({
      keyId: null,
      portalTokenId: 'p',
      tenantId: 't',
      scopes: ['read', 'replay'],
      endpointIds: new Set(['e']),
      requestsPerSecond: null,
    });
    expect(authenticator.authenticate(bearer('rlp_good'))).toMatchObject({ portalTokenId: 'p' });
    await expect(authenticator.authenticate(bearer('rlp_bad'))).rejects.toMatchObject({
      code: 'unauthorized',
    });
    expect(asked).toEqual([hashApiKey('rlp_good'), hashApiKey('rlp_bad')]);
  });

  it('takes the scheme in any case', async () => {
    const { authenticator } = givenAuthenticator();
    expect(await authenticator.authenticate('bearer good')).toMatchObject({ keyId: 'k' });
  });
});

const ANYBODY: Principal = {
  keyId: 'k',
  portalTokenId: null,
  tenantId: null,
  scopes: [],
  endpointIds: null,
  requestsPerSecond: null,
};

describe('access', () => {
  const allowed = (principal: Principal, access: Access) => {
    try {
      requireAccess(principal, access);
      return true;
    } catch {
      return false;
    }
  };

  it('follows from scopes and tenant alone', () => {
    for (const tenantId of [null, 't']) {
      for (const scope of SCOPES) {
        const principal: Principal = { ...ANYBODY, tenantId, scopes: [scope] };
        for (const access of SCOPES) {
          expect(allowed(principal, access)).toBe(
            access === scope || (access === 'replay' && scope === 'manage'),
          );
        }
        expect(allowed(principal, 'admin')).toBe(tenantId === null && scope === 'manage');
        expect(allowed(principal, 'open')).toBe(true);
      }
    }
  });
});
