import { z } from 'zod';
import { DEAD_REASONS, FINISHED_STATUSES, REPLAY_STATES } from '../../../lib/domain/vocabulary.ts';

const id = () => z.string().meta({ format: 'uuid' });
const moment = () => z.string().meta({ format: 'date-time' });

export const ReplayJobShape = z
  .strictObject({
    id: id(),
    state: z.enum(REPLAY_STATES).meta({
      description:
        '`failed`: it could not go on, for the reason in `error`; resuming it lets it try again. `cancelled` and `finished` are over.',
    }),
    dry_run: z.boolean().meta({ description: 'It only counts: `selected` is the answer.' }),
    filter: z.strictObject({
      status: z.enum(FINISHED_STATUSES),
      endpoint_id: id().nullable(),
      event_type: z.string().nullable(),
      reason: z.enum(DEAD_REASONS).nullable(),
      from: moment().nullable(),
      to: moment().nullable(),
    }),
    rate_per_second: z.number(),
    expected: z.int().nullable().meta({
      description:
        'How many passed the filter when the job was made; null when they were too many to count at once.',
    }),
    selected: z
      .int()
      .meta({ description: 'Found so far. Each of them is replayed, skipped or waiting: the sum is exact.' }),
    replayed: z.int().meta({ description: 'Pending again: the same id, one generation on.' }),
    skipped: z.strictObject({
      endpoint_deleted: z.int(),
      event_missing: z.int(),
      changed: z
        .int()
        .meta({ description: 'Replayed by somebody else meanwhile, or not in the record any more.' }),
      locked: z.int().meta({ description: 'Held by somebody until the job was cancelled.' }),
    }),
    waiting: z.int().meta({ description: 'Held by somebody when their turn came; they are tried again.' }),
    error: z.string().nullable(),
    created_at: moment(),
    updated_at: moment(),
    finished_at: moment().nullable(),
  })
  .meta({ id: 'ReplayJob' });

export const ReplayCountShape = z
  .strictObject({ dry_run: z.literal(true), count: z.int() })
  .meta({ id: 'ReplayCount' });
