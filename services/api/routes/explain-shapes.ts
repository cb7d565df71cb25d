import { z } from 'zod';
import { GATES } from '../../../lib/domain/explain-gates.ts';
import { MISMATCHES } from '../../../lib/domain/explain-match.ts';
import {
  DEAD_REASONS,
  LANES,
  OUTCOME_CLASSES,
  SHOWN_STATUSES,
  WAITS,
} from '../../../lib/domain/vocabulary.ts';
import { AHEAD_LIMIT } from '../../../lib/store/explain.ts';
import { EndpointShape } from './shapes.ts';

/** What the questions "why has this not arrived" and "why was this not matched" are answered with. */

const id = () => z.string().meta({ format: 'uuid' });
const moment = () => z.string().meta({ format: 'date-time' });

const { id: _, ...gates } = EndpointShape.pick({
  id: true,
  enabled: true,
  disabled_reason: true,
  disabled_at: true,
  paused: true,
  paused_until: true,
  paused_reason: true,
  breaker: true,
  rate_per_second: true,
  burst: true,
  max_in_flight: true,
}).shape;

const EndpointGatesShape = z.strictObject({ id: id(), deleted: z.boolean(), ...gates });

const QueueShape = z.strictObject({
  lane: z.enum(LANES),
  due_at: moment().nullable().meta({ description: 'Null while it is parked.' }),
  announced_at: moment()
    .nullable()
    .meta({ description: 'When dispatchers were told that it is due; null when they were not yet.' }),
  expires_at: moment().nullable(),
  reclaims: z.int().meta({ description: 'How many holders in a row vanished.' }),
  cancel_requested: z.boolean(),
});

export const DeliveryExplanationShape = z
  .strictObject({
    delivery_id: id(),
    status: z.enum(SHOWN_STATUSES),
    dead_reason: z.enum(DEAD_REASONS).nullable(),
    finished_at: moment().nullable(),
    summary: z.string().meta({ description: 'For people: one or two sentences.' }),
    gate: z
      .strictObject({ reason: z.enum(GATES), detail: z.string() })
      .nullable()
      .meta({ description: 'What holds it back; null when nothing is owed.' }),
    waiting: z
      .enum(WAITS)
      .nullable()
      .meta({ description: '`slot`: at a moment of its own; `parked`: without one.' }),
    next_attempt_at: moment().nullable(),
    attempts: z.int(),
    deferrals: z.int(),
    last_outcome: z
      .strictObject({
        class: z.enum(OUTCOME_CLASSES),
        http_status: z.int().nullable(),
        error: z.string().nullable(),
        at: moment().nullable(),
      })
      .nullable()
      .meta({ description: 'The newest that was not a deferral.' }),
    endpoint: EndpointGatesShape.nullable().meta({ description: 'Null when it is missing.' }),
    lease: z
      .strictObject({ process: z.int(), role: z.string().nullable(), expires_at: moment() })
      .nullable()
      .meta({ description: 'Who holds it; `role` is null when the process has left the fleet.' }),
    ahead: z
      .strictObject({ count: z.int(), capped: z.boolean() })
      .nullable()
      .meta({
        description: `How many deliveries of its endpoint have an earlier slot, counted up to ${AHEAD_LIMIT}; null when it waits in no slot.`,
      }),
    queue: QueueShape.nullable().meta({ description: 'Null when nothing is owed.' }),
  })
  .meta({ id: 'DeliveryExplanation' });

const MatchShape = z.strictObject({
  endpoint_id: id(),
  url: z.string().nullable(),
  event_types: z.array(z.string()).nullable().meta({
    description: 'As they are now; none at all means everything, null none but operational events.',
  }),
  matched: z.boolean(),
  delivery_id: id().nullable(),
  delivery_status: z.enum(SHOWN_STATUSES).nullable(),
  reason: z.enum(MISMATCHES).nullable().meta({ description: 'Why it was not matched.' }),
  detail: z.string(),
});

export const EventExplanationShape = z
  .strictObject({
    event_id: id(),
    event_type: z.string(),
    created_at: moment(),
    count: z.int(),
    items: z.array(MatchShape),
    next_cursor: z.string().nullable(),
  })
  .meta({ id: 'EventExplanation' });
