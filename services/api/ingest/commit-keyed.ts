import type pg from 'pg';
import { pause } from '../../../lib/runtime/pause.ts';
import { isTransient, LOCK_TIMEOUT, sqlState } from '../../../lib/store/failure.ts';
import {
  type Accepted,
  acceptKeyedEvents,
  deleteExpiredKeys,
  firstAnswersOf,
  type KeyedEvent,
  type KeyedOutcome,
} from '../../../lib/store/ingest.ts';
import type { CommitContext } from './acceptor.ts';
import {
  acceptOptions,
  answerAccepted,
  type Connected,
  dropStale,
  partsOf,
  withConnection,
} from './commit.ts';
import { answerAlone, settleFailure } from './commit-plain.ts';
import { keyOf, type Member } from './member.ts';

/** How long a request waits for a key that an open transaction holds. */
const HELD_KEY_WAIT_MS = 2_000;
const FIRST_WAIT_MS = 10;
const MAX_HELD_WAIT_MS = 200;
const MAX_LOOKS = 5;

/** Commits requests with keys, which stand once each. Never rejects. */
export async function commitKeyed(context: CommitContext, batch: readonly Member[]): Promise<void> {
  const now = performance.now();
  const members = dropStale(batch);
  const held = members.filter((member) => (context.heldUntil.get(keyOf(member.request)) ?? 0) > now);
  const free = held.length === 0 ? members : members.filter((member) => !held.includes(member));
  // Those alone wait for their key outside of this batch's lane.
  for (const member of held) void commitAlone(context, member);
  if (free.length === 0) return;
  const outcome = await withConnection(context.keyedPool, (client) => commit(context, client, free));
  if (outcome.kind === 'done') return;
  // Outside of this batch's lane, too: which of the keys is held is still to be found.
  if (isHeldUp(outcome)) for (const part of partsOf(free)) void commitPart(context, part);
  else await settleFailure(context, free, outcome, (part) => commitPart(context, part));
}

/** Commits part of a batch that could not be committed together, so that whoever waits for a key waits alone. */
async function commitPart(context: CommitContext, part: readonly Member[]): Promise<void> {
  if (part.length === 1) return commitAlone(context, part[0]!);
  const outcome = await withConnection(context.alonePool, (client) => commit(context, client, part));
  if (outcome.kind === 'done') return;
  const again = (smaller: readonly Member[]) => commitPart(context, smaller);
  if (isHeldUp(outcome)) await Promise.all(partsOf(part).map(again));
  else await settleFailure(context, part, outcome, again);
}

function isHeldUp(outcome: Connected): boolean {
  return outcome.kind === 'failed' && sqlState(outcome.error) === LOCK_TIMEOUT;
}

async function commit(
  context: CommitContext,
  client: pg.PoolClient,
  members: readonly Member[],
): Promise<void> {
  context.metrics.batchSize.observe(members.length);
  const options = { ...acceptOptions(context), retentionMs: context.retentionMs };
  const outcomes = await acceptKeyedEvents(client, members.map(toKeyedEvent), options);
  // What is committed is answered and announced whatever follows.
  answerAccepted(context, members, outcomes.map(acceptedOnly), options);
  await answerOthers(context, members, outcomes);
}

function toKeyedEvent({ request, digest }: Member): KeyedEvent {
  return { ...request, key: request.idempotencyKey ?? '', digest: digest ?? Buffer.alloc(0) };
}

function acceptedOnly(outcome: KeyedOutcome): Accepted | null {
  switch (outcome.kind) {
    case 'accepted':
    case 'no_target':
    case 'too_many_deliveries':
    case 'already_expired':
      return outcome;
    default:
      return null;
  }
}

async function answerOthers(
  context: CommitContext,
  members: readonly Member[],
  outcomes: readonly KeyedOutcome[],
): Promise<void> {
  const replays: { member: Member; eventId: string }[] = [];
  const expired: Member[] = [];
  for (const [index, member] of members.entries()) {
    const outcome = outcomes[index];
    if (outcome?.kind === 'conflict') member.answer({ kind: 'conflict' });
    if (outcome?.kind === 'replayed') replays.push({ member, eventId: outcome.eventId });
    if (outcome?.kind === 'expired_key') expired.push(member);
    if (outcome?.kind === 'look_again') lookAgain(context, member);
  }
  await Promise.all([answerReplays(context, replays), forgetExpired(context, expired)]);
}

async function answerReplays(
  context: CommitContext,
  replays: readonly { member: Member; eventId: string }[],
): Promise<void> {
  if (replays.length === 0) return;
  try {
    const answers = await firstAnswersOf(
      context.generalPool,
      replays.map((replay) => replay.eventId),
    );
    for (const { member, eventId } of replays) {
      const answer = answers.get(eventId) ?? { deliveryIds: [], continuesTo: null };
      member.answer({ kind: 'accepted', eventId, ...answer, replayed: true });
    }
  } catch (error) {
    context.log.warn({ err: error }, 'the first answers of repeated requests could not be read');
    for (const { member } of replays) member.answer({ kind: 'unavailable' });
  }
}

async function forgetExpired(context: CommitContext, members: readonly Member[]): Promise<void> {
  if (members.length === 0) return;
  const keys = members.map(({ request }) => ({
    tenantId: request.tenantId,
    key: request.idempotencyKey ?? '',
  }));
  try {
    await deleteExpiredKeys(context.generalPool, keys);
    for (const member of members) lookAgain(context, member);
  } catch {
    for (const member of members) member.answer({ kind: 'unavailable' });
  }
}

/** A new statement sees what the last one waited for. */
function lookAgain(context: CommitContext, member: Member): void {
  member.looks += 1;
  if (member.looks > MAX_LOOKS) member.answer({ kind: 'in_progress' });
  else context.again(member);
}

// Between its tries a request holds no connection: however many keys are held, whose key is free gets its turn.
async function commitAlone(context: CommitContext, member: Member): Promise<void> {
  const key = keyOf(member.request);
  for (let waitMs = FIRST_WAIT_MS; ; waitMs = Math.min(2 * waitMs, MAX_HELD_WAIT_MS)) {
    const outcome = await withConnection(context.alonePool, (client) => commit(context, client, [member]));
    if (outcome.kind === 'done') return void context.heldUntil.delete(key);
    const locked = isHeldUp(outcome);
    const inTime = performance.now() - member.arrivedAt < HELD_KEY_WAIT_MS;
    if (locked) context.heldUntil.set(key, performance.now() + HELD_KEY_WAIT_MS);
    if (outcome.kind === 'failed' && isTransient(outcome.error) && inTime) {
      await pause(waitMs);
      continue;
    }
    forgetPast(context.heldUntil);
    return locked ? member.answer({ kind: 'in_progress' }) : answerAlone(context, member, outcome);
  }
}

function forgetPast(heldUntil: Map<string, number>): void {
  const now = performance.now();
  for (const [key, until] of heldUntil) if (until < now) heldUntil.delete(key);
}
