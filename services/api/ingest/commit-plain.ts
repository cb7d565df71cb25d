import type pg from 'pg';
import { isTransient, judgeFailure } from '../../../lib/store/failure.ts';
import { acceptEvents } from '../../../lib/store/ingest.ts';
import type { CommitContext } from './acceptor.ts';
import {
  acceptOptions,
  answerAccepted,
  answerAll,
  type Connected,
  dropStale,
  partsOf,
  withConnection,
} from './commit.ts';
import type { Member } from './member.ts';

const TRIES = 3;

/** Commits requests without keys: together, and in ever smaller parts when Postgres says that one of them is to blame. Never rejects. */
export async function commitPlain(context: CommitContext, batch: readonly Member[]): Promise<void> {
  const members = dropStale(batch);
  if (members.length > 0) await commitTogether(context, members);
}

async function commitTogether(context: CommitContext, members: readonly Member[]): Promise<void> {
  const outcome = await tryCommit(context, members);
  // Nobody's data is to blame for what others hold, and what stops one stops all of them.
  if (outcome.kind === 'failed' && isTransient(outcome.error)) {
    context.log.warn({ err: outcome.error, members: members.length }, 'a group commit was held up');
    return answerAll(members, { kind: 'unavailable' });
  }
  if (outcome.kind === 'done') return;
  await settleFailure(context, members, outcome, (part) => commitPart(context, part));
}

async function commitPart(context: CommitContext, part: readonly Member[]): Promise<void> {
  if (part.length > 1) return commitTogether(context, part);
  const outcome = await tryCommit(context, part);
  if (outcome.kind !== 'done') answerAlone(context, part[0]!, outcome);
}

// On the lane's own connections: whoever waits for a key elsewhere must not hold up those who have none.
async function tryCommit(context: CommitContext, members: readonly Member[]): Promise<Connected> {
  for (let tries = 1; ; tries += 1) {
    const outcome = await withConnection(context.plainPool, (client) => commit(context, client, members));
    const again = outcome.kind === 'failed' && isTransient(outcome.error) && tries < TRIES;
    if (!again) return outcome;
  }
}

async function commit(
  context: CommitContext,
  client: pg.PoolClient,
  members: readonly Member[],
): Promise<void> {
  const options = acceptOptions(context);
  context.metrics.batchSize.observe(members.length);
  const results = await acceptEvents(
    client,
    members.map((member) => member.request),
    options,
  );
  answerAccepted(context, members, results, options);
}

/**
 * What follows a statement that failed. Only a fault that Postgres reported, and that one row may have caused, is tried again, because only
 * then is it known that nothing was committed.
 */
export async function settleFailure(
  context: CommitContext,
  members: readonly Member[],
  outcome: Exclude<Connected, { kind: 'done' }>,
  again: (part: readonly Member[]) => Promise<void>,
): Promise<void> {
  if (outcome.kind === 'no_connection') return answerAll(members, { kind: 'unavailable' });
  const failure = judgeFailure(outcome.error);
  context.log.warn({ err: outcome.error, failure, members: members.length }, 'a group commit failed');
  if (failure === 'refused') return answerAll(members, { kind: 'unavailable' });
  if (failure === 'unknown') {
    context.metrics.commitUnknown.inc(members.length);
    return answerAll(members, { kind: 'commit_unknown' });
  }
  await Promise.all(partsOf(members).map(again));
}

/** The answer to a request that failed even by itself. */
export function answerAlone(
  context: CommitContext,
  member: Member,
  outcome: Exclude<Connected, { kind: 'done' }>,
): void {
  if (outcome.kind === 'no_connection') return member.answer({ kind: 'unavailable' });
  const failure = judgeFailure(outcome.error);
  if (failure === 'unknown') {
    context.metrics.commitUnknown.inc();
    return member.answer({ kind: 'commit_unknown' });
  }
  if (failure === 'refused' || isTransient(outcome.error)) return member.answer({ kind: 'unavailable' });
  const message = outcome.error instanceof Error ? outcome.error.message : 'refused by the database';
  member.answer({ kind: 'rejected', message });
}
