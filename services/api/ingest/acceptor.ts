import type pg from 'pg';
import type { RedisLink } from '../../../lib/broker/link.ts';
import { requestDigest } from '../../../lib/domain/idempotency-key.ts';
import type { IngestMetrics } from '../../../lib/metrics/ingest.ts';
import { Batcher } from '../../../lib/runtime/batcher.ts';
import type { Logger } from '../../../lib/runtime/log.ts';
import { readEndpointRates } from '../../../lib/store/endpoint-rates.ts';
import { Announcements } from './announcements.ts';
import { commitKeyed } from './commit-keyed.ts';
import { commitPlain } from './commit-plain.ts';
import { Lanes } from './lanes.ts';
import { type AcceptResult, type EventRequest, keyOf, type Member } from './member.ts';

export type { AcceptResult, EventRequest } from './member.ts';

export interface Acceptor {
  /** Resolves when the event is durably committed, or says why it is not. Never rejects. */
  accept(request: EventRequest): Promise<AcceptResult>;
  /**
   * The same for several, which share a commit: one for those with keys, one for those without. Results stand in the order of the requests. They
   * are taken or refused as one when too much waits already. Never rejects.
   */
  acceptAll(requests: readonly EventRequest[]): Promise<AcceptResult[]>;
  readonly queued: number;
  /** Resolves when everything begun is answered and announced. */
  close(): Promise<void>;
}

export interface AcceptorOptions {
  /** Connections for group commits (purpose `ingest`), `lanes` of them for each of the two kinds. */
  plainPool: pg.Pool;
  keyedPool: pg.Pool;
  /** Connections for requests with keys that are tried alone (purpose `ingest_alone`); a held key blocks nobody but its like here. */
  alonePool: pg.Pool;
  /** For looking up, un-announcing and waking. */
  generalPool: pg.Pool;
  link: RedisLink | null;
  pollMode: () => boolean;
  /** How many APIs share the endpoints' rates between them. */
  liveApis: () => number;
  metrics: IngestMetrics;
  log: Logger;
  lanes: number;
  maxBatch: number;
  lingerMs: number;
  maxQueued: number;
  retentionMs: number;
}

/** What the two kinds of commit share. */
export interface CommitContext extends Omit<AcceptorOptions, 'lanes'> {
  lanes: Lanes;
  announcements: Announcements;
  /**
   * Keys known to be held by an open transaction, until when (performance.now): requests for them go alone at once, so that batches do not
   * stop at them again and again.
   */
  heldUntil: Map<string, number>;
  /** Puts a member back to be looked at again. */
  again: (member: Member) => void;
}

/** Waiting payloads above this are refused rather than kept. */
const MAX_QUEUED_BYTES = 128 * 1024 * 1024;

/**
 * Group commit: requests in flight at the same moment share one statement, and each is answered after its commit. Requests with and without
 * idempotency keys never share a statement, because only the former may wait for somebody else's lock.
 */
export function createAcceptor(options: AcceptorOptions): Acceptor {
  return new GroupCommit(options);
}

class GroupCommit implements Acceptor {
  readonly #options: AcceptorOptions;
  readonly #announcements: Announcements;
  readonly #lanes: Lanes;
  /** What stands together is committed together. */
  readonly #plain: Batcher<readonly Member[]>;
  readonly #keyed: Batcher<readonly Member[]>;
  /** The request that is on its way for each key; others with that key follow it. */
  readonly #leaders = new Map<string, Member>();
  #waiting = 0;
  #waitingBytes = 0;
  #idle: (() => void)[] = [];

  constructor(options: AcceptorOptions) {
    this.#options = options;
    this.#announcements = new Announcements({ ...options, pool: options.generalPool });
    this.#lanes = new Lanes({
      readRates: (ids) => readEndpointRates(options.generalPool, ids),
      liveApis: options.liveApis,
      log: options.log,
    });
    const context: CommitContext = {
      ...options,
      lanes: this.#lanes,
      announcements: this.#announcements,
      heldUntil: new Map(),
      again: (member) => this.#keyed.add([member]),
    };
    const batching = {
      maxBatch: options.maxBatch,
      weigh: (group: readonly Member[]) => group.length,
      lingerMs: options.lingerMs,
      lanes: options.lanes,
    };
    this.#plain = new Batcher({ ...batching, flush: (groups) => commitPlain(context, groups.flat()) });
    this.#keyed = new Batcher({ ...batching, flush: (groups) => commitKeyed(context, groups.flat()) });
  }

  get queued(): number {
    return this.#waiting;
  }

  accept(request: EventRequest): Promise<AcceptResult> {
    if (this.#full()) return Promise.resolve({ kind: 'overloaded' });
    return new Promise((resolve) => {
      const member = this.#admit(request, resolve);
      if (request.idempotencyKey === null) this.#plain.add([member]);
      else this.#enterKeyed(member);
    });
  }

  acceptAll(requests: readonly EventRequest[]): Promise<AcceptResult[]> {
    if (this.#full()) return Promise.resolve(requests.map(() => ({ kind: 'overloaded' })));
    const plain: Member[] = [];
    const keyed: Member[] = [];
    const results = requests.map(
      (request) =>
        new Promise<AcceptResult>((resolve) => {
          const member = this.#admit(request, resolve);
          (request.idempotencyKey === null ? plain : keyed).push(member);
        }),
    );
    if (plain.length > 0) this.#plain.add(plain);
    const leaders = keyed.filter((member) => this.#leads(member));
    if (leaders.length > 0) this.#keyed.add(leaders);
    return Promise.all(results);
  }

  async close(): Promise<void> {
    if (this.#waiting > 0) await new Promise<void>((resolve) => this.#idle.push(resolve));
    await Promise.all([this.#plain.drain(), this.#keyed.drain()]);
    await Promise.all([this.#announcements.drain(), this.#lanes.idle()]);
  }

  /** What waits already decides, so that the last one taken may pass the bound: by one event, or by one batch. */
  #full(): boolean {
    return this.#waiting >= this.#options.maxQueued || this.#waitingBytes > MAX_QUEUED_BYTES;
  }

  #admit(request: EventRequest, resolve: (result: AcceptResult) => void): Member {
    this.#waiting += 1;
    this.#waitingBytes += request.payload.length;
    const answer = (result: AcceptResult) => {
      this.#waiting -= 1;
      this.#waitingBytes -= request.payload.length;
      if (this.#waiting === 0) this.#announceIdle();
      resolve(result);
    };
    return { request, digest: null, arrivedAt: performance.now(), answer, followers: [], looks: 0 };
  }

  #enterKeyed(member: Member): void {
    if (this.#leads(member)) this.#keyed.add([member]);
  }

  /** Whether a request goes on its way by itself; if not, it follows the one that is on its way with its key. */
  #leads(member: Member): boolean {
    const { request } = member;
    member.digest ??= requestDigest(
      request.type,
      request.contentType,
      request.targetEndpointId,
      request.payload,
      request,
    );
    const key = keyOf(request);
    const leader = this.#leaders.get(key);
    if (leader) {
      leader.followers.push(member);
      return false;
    }
    this.#leaders.set(key, member);
    const answerOwn = member.answer;
    member.answer = (result) => {
      this.#leaders.delete(key);
      answerOwn(result);
      this.#answerFollowers(member, result);
    };
    return true;
  }

  /** Followers that ask for the same thing share the result; one that asks for something else must ask the database itself. */
  #answerFollowers(leader: Member, result: AcceptResult): void {
    for (const follower of leader.followers) {
      if (!follower.digest || !leader.digest?.equals(follower.digest)) this.#enterKeyed(follower);
      else follower.answer(result.kind === 'accepted' ? { ...result, replayed: true } : result);
    }
  }

  #announceIdle(): void {
    const waiting = this.#idle;
    this.#idle = [];
    for (const resolve of waiting) resolve();
  }
}
