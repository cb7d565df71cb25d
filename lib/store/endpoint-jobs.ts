import { sql } from 'kysely';
import type { EndpointJobKind } from '../domain/vocabulary.ts';
import type { Connection } from './database.ts';

/**
 * Asks for a job over what waits for an endpoint, in the transaction that makes it necessary. Asked for again while it runs, it starts over:
 * its round rises, so the step that would have ended it does not.
 */
export async function requestJob(trx: Connection, endpointId: string, kind: EndpointJobKind): Promise<void> {
  await trx
    .insertInto('endpoint_jobs')
    .values({ endpoint_id: endpointId, kind })
    .onConflict((conflict) =>
      conflict.columns(['endpoint_id', 'kind']).doUpdateSet({
        round: sql`endpoint_jobs.round + 1`,
        after_delivery: null,
      }),
    )
    .execute();
}
