import { afterEach, describe, expect, it } from 'vitest';
import { classify } from '../../../lib/domain/outcome.ts';
import { type DnsAnswer, type QueryType, startNameServer } from './fixtures/name-server.ts';
import { anywhere, sender as newSender, post, publicOnly, verdict } from './fixtures/requests.ts';
import { httpSink, type Sink } from './fixtures/sinks.ts';
import { createResolver } from './resolver.ts';
import type { Sender, SenderOptions } from './sender.ts';

const open: { close(): Promise<void> }[] = [];
afterEach(async () => {
  for (const each of open.splice(0).reverse()) await each.close();
});

/** Stands for the internet: the one address of loopback that these tests allow. */
const PUBLIC = '127.0.0.2';
const standIn: Partial<SenderOptions> = {
  policy: publicOnly,
  isAllowedAddress: (address) => address === PUBLIC,
};

interface World {
  sender: Sender;
  /** What may be reached, on PUBLIC. */
  sink: Sink;
  /** What must not: the same port on 127.0.0.1. */
  canary: Sink;
  queries: Map<string, number>;
}

async function given(answer: (name: string, type: QueryType, query: number) => DnsAnswer): Promise<World> {
  const canary = await httpSink();
  const sink = await sinkOnSamePort(canary.port);
  const nameServer = await startNameServer(answer);
  const sender = newSender({
    ...standIn,
    resolver: createResolver({ servers: [nameServer.server], timeoutMs: 300 }),
  });
  open.push(canary, sink, nameServer, sender);
  return { sender, sink, canary, queries: nameServer.queries };
}

describe('a name whose address is allowed', () => {
  it('is connected to, and stays the name that the endpoint sees', async () => {
    const { sender, sink, canary } = await given(() => [PUBLIC]);
    expect(verdict(await post(sender, `http://sink.example.test:${sink.port}/`))).toBe(200);
    expect(sink.hits[0]?.headers.host).toBe(`sink.example.test:${sink.port}`);
    expect(canary.connections).toBe(0);
  });
});

describe('a name whose answer changes', () => {
  it('between the check and the connection cannot lead inside: there is one answer', async () => {
    const { sender, sink, canary, queries } = await given((_, type, query) =>
      type === 'AAAA' ? [] : [query === 1 ? PUBLIC : '127.0.0.1'],
    );
    const url = `http://rebind.example.test:${sink.port}/`;
    expect(verdict(await post(sender, url))).toBe(200);
    expect(queries.get('rebind.example.test A')).toBe(1);
    expect([sink.hits.length, canary.connections]).toEqual([1, 0]);
  });

  it('to a forbidden address before a send is refused at that send', async () => {
    const { sender, sink, canary } = await given((_, type, query) =>
      type === 'AAAA' ? [] : [query === 1 ? PUBLIC : '127.0.0.1'],
    );
    const url = `http://later.example.test:${sink.port}/`;
    const closing = { headers: ['connection', 'close'] };
    expect(verdict(await post(sender, url, closing))).toBe(200);
    const refused = await post(sender, url, closing);
    expect(refused).toMatchObject({ kind: 'failure', failure: 'refused', requestSent: false });
    expect(classify(refused)).toEqual({ class: 'permanent', reason: 'refused' });
    expect([sink.hits.length, canary.connections]).toEqual([1, 0]);
    expect(sender.stats()).toMatchObject({ refused: 1, busy: 0 });
  });

  it.each([[[PUBLIC, '127.0.0.1']], [['127.0.0.1', PUBLIC]], [[PUBLIC, '0.0.0.0']]])(
    'to both %j at once is refused altogether',
    async (addresses) => {
      const { sender, sink, canary } = await given((_, type) => (type === 'A' ? addresses : []));
      expect(verdict(await post(sender, `http://both.example.test:${sink.port}/`))).toBe('refused');
      expect([sink.connections, canary.connections]).toEqual([0, 0]);
    },
  );

  it('in one family only is refused too', async () => {
    const { sender, sink, canary } = await given((_, type) => (type === 'A' ? [PUBLIC] : ['::1']));
    expect(verdict(await post(sender, `http://six.example.test:${sink.port}/`))).toBe('refused');
    expect([sink.connections, canary.connections]).toEqual([0, 0]);
  });
});

describe('a name with a forbidden address, judged as in production', () => {
  it.each([
    '127.0.0.1',
    '10.1.2.3',
    '169.254.169.254',
    '168.63.129.16',
    '0.0.0.0',
    '100.100.100.200',
    '::',
    '::1',
    'fe80::1',
    'fd00:ec2::254',
    '::ffff:7f00:1',
    '::ffff:a9fe:a9fe',
    '::7f00:1',
    '2002:7f00:1::',
    '64:ff9b::a9fe:a9fe',
    '2001:0:4136:e378:8000:63bf:3fff:fdd2',
  ])('%s is refused without a connection', async (address) => {
    const canary = await httpSink();
    const nameServer = await startNameServer(() => [address]);
    const resolver = createResolver({ servers: [nameServer.server], timeoutMs: 300 });
    const sender = newSender({ policy: publicOnly, resolver });
    open.push(canary, nameServer, sender);
    expect(verdict(await post(sender, `http://trap.example.test:${canary.port}/`))).toBe('refused');
    expect(canary.connections).toBe(0);
  });
});

describe('a destination that is refused as it is written', () => {
  it.each([
    'http://127.0.0.1:PORT/',
    'http://2130706433:PORT/',
    'http://0x7f.1:PORT/',
    'http://127.1:PORT/',
    'http://0:PORT/',
    'http://[::ffff:127.0.0.1]:PORT/',
    'http://[::1]:PORT/',
    'http://localhost:PORT/',
    'http://LOCALHOST.:PORT/',
    'http://metadata.google.internal.:PORT/',
    'http://user:pw@sink.example.test:PORT/',
    'ftp://sink.example.test:PORT/',
  ])('such as %s is neither resolved nor dialled', async (url) => {
    const canary = await httpSink();
    const asked: string[] = [];
    const resolver = async (name: string) => {
      asked.push(name);
      return ['127.0.0.1'];
    };
    const sender = newSender({ policy: publicOnly, resolver });
    open.push(canary, sender);
    expect(verdict(await post(sender, url.replace('PORT', String(canary.port))))).toBe('refused');
    expect([canary.connections, asked]).toEqual([0, []]);
    expect(sender.stats()).toMatchObject({ refused: 1, dialled: 0, busy: 0, origins: 0 });
  });

  it('stays refused when a connection to its origin is already kept', async () => {
    const sink = await httpSink();
    const sender = newSender();
    open.push(sink, sender);
    await post(sender, `http://127.0.0.1:${sink.port}/`);
    for (const bad of [`http://user:pw@127.0.0.1:${sink.port}/`, `http://127.0.0.1:${sink.port}/#part`]) {
      expect(verdict(await post(sender, bad))).toBe('refused');
    }
    expect(sink.hits).toHaveLength(1);
    expect(verdict(await post(sender, `http://127.0.0.1:${sink.port}/`))).toBe(200);
  });
});

describe('the connector itself', () => {
  it('judges a literal address even when nothing before it did', async () => {
    const canary = await httpSink();
    const sender = newSender({ policy: anywhere, isAllowedAddress: () => false });
    open.push(canary, sender);
    expect(verdict(await post(sender, `http://127.0.0.1:${canary.port}/`))).toBe('refused');
    expect(canary.connections).toBe(0);
  });

  it('judges the address that answered, once more', async () => {
    const canary = await httpSink();
    let judged = 0;
    const sender = newSender({ policy: anywhere, isAllowedAddress: () => judged++ === 0 });
    open.push(canary, sender);
    const result = await post(sender, `http://127.0.0.1:${canary.port}/`);
    expect(result).toMatchObject({ failure: 'refused', requestSent: false });
    expect([judged, canary.hits.length]).toEqual([2, 0]);
  });

  it('uses the next address when one does not answer', async () => {
    const sink = await httpSink();
    const sender = newSender({ resolver: async () => ['127.0.0.3', '127.0.0.1'] });
    open.push(sink, sender);
    expect(verdict(await post(sender, `http://two.example.test:${sink.port}/`))).toBe(200);
  });

  it('does not choke on a name with thousands of addresses', async () => {
    let judged = 0;
    const many = Array.from({ length: 5_000 }, (_, i) => `127.1.${i >> 8}.${i & 255}`);
    const sender = newSender({
      resolver: async () => many,
      isAllowedAddress: () => {
        judged++;
        return true;
      },
    });
    open.push(sender);
    expect(verdict(await post(sender, 'http://many.example.test:1/'))).toBe('connect');
    expect(judged).toBe(16);
  });
});

describe('trouble with DNS', () => {
  it('is retried, for it is no refusal', async () => {
    const { sender, sink } = await given((_, __, query) => (query === 1 ? 'NXDOMAIN' : [PUBLIC]));
    const url = `http://new.example.test:${sink.port}/`;
    const failed = await post(sender, url);
    expect(failed).toMatchObject({ kind: 'failure', failure: 'dns', requestSent: false });
    expect(classify(failed)).toEqual({ class: 'retryable' });
    expect(verdict(await post(sender, url))).toBe(200);
    expect(sender.stats().refused).toBe(0);
  });
});

/** Listens on the stand-in's address, on a port that is known to be free there since loopback is ours. */
async function sinkOnSamePort(port: number): Promise<Sink> {
  return httpSink(undefined, PUBLIC, port);
}
