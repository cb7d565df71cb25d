import { randomBytes, randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import type { PrivateFleet } from '../fleet.ts';

export interface HeldKeyReport {
  /** Answers to the posts with the held key by status; 0 for none. */
  answers: Record<string, number>;
  /** From the end of the transaction to the first 202; null when none came. */
  secondsToAccept: number | null;
}

/** A producer's transaction that holds an idempotency key, and another producer that keeps posting with it. */
export interface HeldKey {
  /** Rolls the transaction back, waits for a post to be accepted, and ends the posting. */
  release(withinMs: number): Promise<HeldKeyReport>;
}

const POST_EVERY_MS = 50;
/** Longer than the API lets a post wait for a held key. */
const ANSWER_WITHIN_MS = 10_000;

export async function holdKey(
  fleet: Pick<PrivateFleet, 'database' | 'tenantId' | 'apis' | 'key'>,
): Promise<HeldKey> {
  const idempotencyKey = `held-${randomUUID()}`;
  const holder = new pg.Client({
    connectionString: fleet.database,
    application_name: 'relay-loadtest-holder',
  });
  holder.on('error', () => undefined);
  await holder.connect();
  await holder.query('begin');
  await holder.query(
    `insert into relay.idempotency_keys (tenant_id, key, digest, event_id, expires_at)
     values ($1, $2, $3, $4, now() + interval '1 day')`,
    [fleet.tenantId, idempotencyKey, randomBytes(32), randomUUID()],
  );
  const answers: Record<string, number> = {};
  let firstAcceptedMs: number | null = null;
  let stopping = false;
  const underWay = new Set<Promise<void>>();

  const post = async () => {
    const status = await postWith(fleet, idempotencyKey);
    if (status === 202) firstAcceptedMs ??= performance.now();
    answers[status] = (answers[status] ?? 0) + 1;
  };
  const posting = (async () => {
    while (!stopping) {
      const one = post().finally(() => underWay.delete(one));
      underWay.add(one);
      await sleep(POST_EVERY_MS);
    }
  })();
  return {
    async release(withinMs) {
      const releasedMs = performance.now();
      // A restart of the server has ended the transaction already.
      await holder.end().catch(() => undefined);
      while (firstAcceptedMs === null && performance.now() < releasedMs + withinMs)
        await sleep(POST_EVERY_MS);
      stopping = true;
      await posting;
      await Promise.all(underWay);
      const secondsToAccept = firstAcceptedMs === null ? null : (firstAcceptedMs - releasedMs) / 1000;
      return { answers, secondsToAccept };
    },
  };
}

async function postWith(
  { apis, key }: Pick<PrivateFleet, 'apis' | 'key'>,
  idempotencyKey: string,
): Promise<number> {
  try {
    const response = await fetch(`${apis[0]}/v1/events`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${key}`,
        'content-type': 'application/json',
        'idempotency-key': idempotencyKey,
      },
      body: '{"type":"loadtest.held"}',
      signal: AbortSignal.timeout(ANSWER_WITHIN_MS),
    });
    await response.arrayBuffer();
    return response.status;
  } catch {
    return 0;
  }
}
