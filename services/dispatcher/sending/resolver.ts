import { lookup, Resolver } from 'node:dns/promises';

/** All addresses of a name, IPv4 first. Rejects with a `DnsError`. Whether they may be used is judged elsewhere. */
export type Resolve = (hostname: string) => Promise<readonly string[]>;

/** The name could not be resolved. Not a refusal: it may resolve in a minute. `message` is safe to store. */
export class DnsError extends Error {
  readonly code = 'RELAY_DNS';
  override readonly name = 'DnsError';
}

export interface ResolverOptions {
  /** Address or address:port; by default those of the system. */
  servers?: readonly string[];
  /** For the first try of one server; the second takes twice as long. */
  timeoutMs?: number;
  tries?: number;
  /**
   * Ask the system (hosts file, search domains) for a name that DNS does not know. For development: such names are those
   * of a container network or of the machine itself.
   */
  systemFallback?: boolean;
}

/**
 * Resolves through c-ares, not getaddrinfo: that would occupy one of libuv's four threads for as long as a name server is
 * silent, so that four endpoints with a dead name server would stop the sends to all others. The price is that the hosts
 * file is not read (see `systemFallback`). Nothing is cached, so an answer is as fresh as the connection made with it;
 * those who ask for one name at the same moment share one lookup.
 */
export function createResolver(options: ResolverOptions = {}): Resolve {
  const resolver = new Resolver({ timeout: options.timeoutMs ?? 1_500, tries: options.tries ?? 2 });
  if (options.servers !== undefined) resolver.setServers(options.servers);
  const underWay = new Map<string, Promise<readonly string[]>>();
  return (hostname) => {
    const running = underWay.get(hostname);
    if (running !== undefined) return running;
    const started = findAddresses(resolver, hostname, options.systemFallback ?? false).finally(() =>
      underWay.delete(hostname),
    );
    underWay.set(hostname, started);
    return started;
  };
}

async function findAddresses(
  resolver: Resolver,
  hostname: string,
  systemFallback: boolean,
): Promise<readonly string[]> {
  // RFC 6761: these names are this machine, whatever a name server says.
  if (/(?:^|\.)localhost\.?$/.test(hostname)) return ['127.0.0.1', '::1'];
  try {
    return await askNameServers(resolver, hostname);
  } catch (error) {
    const found = systemFallback ? await askSystem(hostname) : [];
    if (found.length > 0) return found;
    throw new DnsError(describe(error));
  }
}

/** RFC 8305's resolution delay, made longer: what a name server that drops AAAA queries may cost. */
const SECOND_FAMILY_MS = 250;

async function askNameServers(resolver: Resolver, hostname: string): Promise<readonly string[]> {
  const families = [settled(resolver.resolve4(hostname)), settled(resolver.resolve6(hostname))] as const;
  await Promise.race([Promise.all(families), onceAnyFound(families)]);
  const answers = await Promise.all(families.map((family) => Promise.race([family, NOT_YET])));
  const addresses = answers.flatMap((answer) => answer.addresses);
  if (addresses.length > 0) return addresses;
  const errors = answers.map((answer) => answer.error);
  // "No such name" from one family says less than trouble with the other, which may hold the addresses.
  throw errors.find((error) => !isAbsent(error)) ?? errors[0];
}

interface Answer {
  addresses: readonly string[];
  error?: unknown;
}

const NOT_YET: Promise<Answer> = Promise.resolve({ addresses: [] });

function settled(query: Promise<string[]>): Promise<Answer> {
  return query.then(
    (addresses) => ({ addresses }),
    (error: unknown) => ({ addresses: [], error }),
  );
}

/** Resolves a little after the first family that has addresses; never, when none has. */
function onceAnyFound(families: readonly Promise<Answer>[]): Promise<void> {
  return new Promise((resolve) => {
    for (const family of families) {
      void family.then(({ addresses }) => {
        if (addresses.length > 0) setTimeout(resolve, SECOND_FAMILY_MS).unref();
      });
    }
  });
}

async function askSystem(hostname: string): Promise<readonly string[]> {
  try {
    const found = await lookup(hostname, { all: true });
    return found.map(({ address }) => address);
  } catch {
    return [];
  }
}

const codeOf = (error: unknown) => (error as { code?: unknown } | undefined)?.code;

function isAbsent(error: unknown): boolean {
  return codeOf(error) === 'ENOTFOUND' || codeOf(error) === 'ENODATA';
}

/** The library's own message repeats the name, and its code says it better. */
function describe(error: unknown): string {
  const code = codeOf(error);
  if (code === 'ENOTFOUND') return 'the name does not exist (ENOTFOUND)';
  if (code === 'ENODATA') return 'the name has no address (ENODATA)';
  return `the name could not be resolved (${typeof code === 'string' ? code : 'no answer'})`;
}
