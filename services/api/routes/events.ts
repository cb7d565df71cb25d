import type { Route } from '../http/route.ts';
import { AcceptedShape } from './shapes.ts';

/** Answered by `post-event.ts`, before express is asked; it stands here to be documented, counted and tested like the others. */
export const postEventRoute: Route = {
  name: 'postEvent',
  method: 'post',
  path: '/v1/events',
  access: 'events:write',
  tag: 'Events',
  summary: 'Post an event',
  description:
    'The body is stored and delivered byte for byte, whatever it holds. 202 means that the event and its deliveries are committed. The type comes from the header `relay-event-type`, else from a top-level string field `type` of a JSON body. With an `idempotency-key` the same request may be sent again: it is answered with the same bytes.',
  answers: [
    {
      status: 202,
      description: 'Committed; one delivery for each endpoint that subscribes to the type',
      schema: AcceptedShape,
      headers: {
        'relay-idempotent-replay':
          'With an idempotency key: whether this is the answer to an earlier request. Absent without one.',
      },
    },
  ],
  problems: [
    'endpoint_not_found',
    'endpoint_disabled',
    'idempotency_conflict',
    'idempotency_in_progress',
    'too_many_deliveries',
    'event_refused',
    'overloaded',
    'commit_unknown',
  ],
  handle: null,
};
