import type pg from 'pg';
import { judgeFailure } from '../../../lib/store/failure.ts';
import type { Accepted } from '../../../lib/store/ingest.ts';
import type { CommitContext } from './acceptor.ts';
import type { AcceptResult, Member } from './member.ts';

/** A request that waited this long behind others is refused unsent: its client has likely given up, and certainly was not told yes. */
const MAX_WAIT_MS = 5_000;

export type Connected =
  | { kind: 'done' }
  /** Nothing was sent. */
  | { kind: 'no_connection'; error: unknown }
  | { kind: 'failed'; error: unknown };

/** Runs `work` on a connection of `pool`; one on which something failed that Postgres did not report is not used again. */
export async function withConnection(
  pool: pg.Pool,
  work: (client: pg.PoolClient) => Promise<void>,
): Promise<Connected> {
  let client: pg.PoolClient;
  try {
    client = await pool.connect();
  } catch (error) {
    return { kind: 'no_connection', error };
  }
  try {
    await work(client);
    client.release();
    return { kind: 'done' };
  } catch (error) {
    client.release(judgeFailure(error) === 'unknown');
    return { kind: 'failed', error };
  }
}

/** Answers those who waited too long, and returns the rest. */
export function dropStale(members: readonly Member[]): readonly Member[] {
  const oldest = performance.now() - MAX_WAIT_MS;
  if (members.every((member) => member.arrivedAt >= oldest)) return members;
  answerAll(
    members.filter((member) => member.arrivedAt < oldest),
    { kind: 'overloaded' },
  );
  return members.filter((member) => member.arrivedAt >= oldest);
}

/** So few are tried one by one: dividing them further would cost more statements than it saves. */
const FEW = 32;

/** A batch that could not be committed, divided: one that is to blame is found among a thousand in some forty statements. */
export function partsOf(members: readonly Member[]): readonly (readonly Member[])[] {
  if (members.length <= FEW) return members.map((member) => [member]);
  const middle = members.length >> 1;
  return [members.slice(0, middle), members.slice(middle)];
}

export function answerAll(members: readonly Member[], result: AcceptResult): void {
  for (const member of members) member.answer(result);
}

export interface LaneChoice {
  announced: boolean;
  /** Whose events go on the bulk lane. */
  bulkEndpoints: readonly string[];
}

/** How a statement that begins now announces its rows. In poll mode nobody reads the lanes. */
export function acceptOptions({ pollMode, lanes }: CommitContext): LaneChoice {
  const announced = !pollMode();
  return { announced, bulkEndpoints: announced ? [...lanes.over()] : [] };
}

/**
 * Answers what was decided for good, then tells the dispatchers, on the lanes that the rows were given. Results stand in the order of the
 * members.
 */
export function answerAccepted(
  context: CommitContext,
  members: readonly Member[],
  results: readonly (Accepted | null)[],
  choice: LaneChoice,
): void {
  const announced = new Announced(choice.bulkEndpoints);
  let found = false;
  for (const [index, member] of members.entries()) {
    const result = results[index];
    if (!result) continue;
    if (result.kind !== 'accepted') {
      member.answer(result);
      continue;
    }
    if (result.announce) announced.add(result);
    else found ||= result.deliveryIds.length > 0;
    member.answer({
      kind: 'accepted',
      eventId: result.eventId,
      deliveryIds: result.deliveryIds,
      continuesTo: result.continuesTo,
      replayed: false,
    });
  }
  context.announcements.announce(announced.express, 'express');
  context.announcements.announce(announced.bulk, 'bulk');
  context.lanes.account(announced.expressEndpoints);
  if (found) context.announcements.wakePollers();
}

/** The ids of a commit by lane. */
class Announced {
  readonly express: string[] = [];
  readonly bulk: string[] = [];
  readonly expressEndpoints: string[] = [];
  readonly #bulkEndpoints: ReadonlySet<string>;

  constructor(bulkEndpoints: readonly string[]) {
    this.#bulkEndpoints = new Set(bulkEndpoints);
  }

  add({ deliveryIds, endpointIds }: Extract<Accepted, { kind: 'accepted' }>): void {
    for (const [place, id] of deliveryIds.entries()) {
      const endpointId = endpointIds[place] ?? '';
      if (this.#bulkEndpoints.has(endpointId)) this.bulk.push(id);
      else {
        this.express.push(id);
        this.expressEndpoints.push(endpointId);
      }
    }
  }
}
