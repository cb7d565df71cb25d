import { afterEach, describe, expect, it } from 'vitest';
import { type DnsAnswer, type NameServer, type QueryType, startNameServer } from './fixtures/name-server.ts';
import { createResolver, DnsError } from './resolver.ts';

const servers: NameServer[] = [];
afterEach(async () => {
  for (const each of servers.splice(0)) await each.close();
});

async function given(answer: (name: string, type: QueryType, query: number) => DnsAnswer) {
  const nameServer = await startNameServer(answer);
  servers.push(nameServer);
  const resolve = createResolver({ servers: [nameServer.server], timeoutMs: 200, tries: 2 });
  return { resolve, queries: nameServer.queries };
}

describe('a name', () => {
  it('resolves to all its addresses of both families, IPv4 first', async () => {
    const { resolve } = await given(() => ['192.0.2.7', '2001:db8::1', '192.0.2.8', '2001:db8:0:1::2']);
    expect(await resolve('both.example.test')).toEqual([
      '192.0.2.7',
      '192.0.2.8',
      '2001:db8::1',
      '2001:db8:0:1::2',
    ]);
  });

  it('may have one family only', async () => {
    const { resolve } = await given((name) => (name.startsWith('four') ? ['192.0.2.7'] : ['2001:db8::1']));
    expect(await resolve('four.example.test')).toEqual(['192.0.2.7']);
    expect(await resolve('six.example.test')).toEqual(['2001:db8::1']);
  });

  it.each<[QueryType, string]>([
    ['A', '2001:db8::1'],
    ['AAAA', '192.0.2.7'],
  ])('is not held up by a server that drops %s queries', async (dropped, expected) => {
    const { resolve } = await given((_, type) =>
      type === dropped ? 'silence' : ['192.0.2.7', '2001:db8::1'],
    );
    const startedAt = performance.now();
    expect(await resolve('half.example.test')).toEqual([expected]);
    expect(performance.now() - startedAt).toBeLessThan(400);
  });

  it('is asked for anew each time, and once by those who ask together', async () => {
    const { resolve, queries } = await given((_, __, query) => [`192.0.2.${query}`]);
    const together = await Promise.all([1, 2, 3].map(() => resolve('a.example.test')));
    expect(together).toEqual([['192.0.2.1'], ['192.0.2.1'], ['192.0.2.1']]);
    expect(await resolve('a.example.test')).toEqual(['192.0.2.2']);
    expect(queries.get('a.example.test A')).toBe(2);
  });

  it.each(['localhost', 'localhost.', 'api.localhost'])(
    '%s is this machine, and nobody is asked',
    async (name) => {
      const { resolve, queries } = await given(() => ['192.0.2.7']);
      expect(await resolve(name)).toEqual(['127.0.0.1', '::1']);
      expect(queries.size).toBe(0);
    },
  );
});

describe('a name that does not resolve', () => {
  it.each<[string, (name: string, type: QueryType) => DnsAnswer, string]>([
    ['does not exist', () => 'NXDOMAIN', 'does not exist'],
    ['has no address', () => [], 'no address'],
    ['meets a failing server', () => 'SERVFAIL', 'ESERVFAIL'],
    ['meets silence', () => 'silence', 'ETIMEOUT'],
    [
      'lacks one family and fails for the other',
      (_, type) => (type === 'A' ? 'SERVFAIL' : 'NXDOMAIN'),
      'ESERVFAIL',
    ],
  ])('because it %s is reported so, without its name', async (_, answer, reason) => {
    const { resolve } = await given(answer);
    const error = await resolve('secret-name.example.test').catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(DnsError);
    expect((error as Error).message).toContain(reason);
    expect((error as Error).message).not.toContain('secret-name');
  });

  it('may resolve a moment later', async () => {
    const { resolve } = await given((_, __, query) => (query === 1 ? 'NXDOMAIN' : ['192.0.2.7']));
    await expect(resolve('late.example.test')).rejects.toThrow('does not exist');
    expect(await resolve('late.example.test')).toEqual(['192.0.2.7']);
  });

  it('is looked for in the hosts file when that was asked for', async () => {
    const { server } = await startNameServer(() => 'NXDOMAIN').then((each) => {
      servers.push(each);
      return each;
    });
    const { hostname } = await import('node:os');
    const resolve = createResolver({ servers: [server], systemFallback: true });
    const found = await resolve(hostname()).catch(() => null);
    const { lookup } = await import('node:dns/promises');
    const expected = await lookup(hostname(), { all: true }).then(
      (all) => all.map(({ address }) => address),
      () => null,
    );
    expect(found).toEqual(expected);
  });
});
