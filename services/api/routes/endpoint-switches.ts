import { z } from 'zod';
import {
  disableEndpoint,
  enableEndpoint,
  type PauseEnd,
  pauseEndpoint,
  resetBreaker,
  resumeEndpoint,
} from '../../../lib/store/endpoint-switches.ts';
import { moment, number } from '../http/fields.ts';
import { invalid } from '../http/problem.ts';
import { type Call, defineRoute, type Reply } from '../http/route.ts';
import { absent, ofOne, refOf, reply, shownEndpoint, theEndpoint } from './endpoint-answers.ts';

const LONGEST_PAUSE_SECONDS = 366 * 86_400;

const Pause = z
  .strictObject({
    until: moment()
      .nullable()
      .optional()
      .meta({ type: ['string', 'null'], description: 'Null, or left out: without an end.' }),
    for_seconds: number({ min: 0, above: true, max: LONGEST_PAUSE_SECONDS })
      .optional()
      .meta({ description: "Counted from now by the database's clock." }),
  })
  .refine((body) => body.until === undefined || body.for_seconds === undefined, {
    path: ['for_seconds'],
    error: 'must not stand beside until: one of them says when the pause ends',
  });

type PauseCall = Call<{ id: string }, Record<string, never>, z.output<typeof Pause>>;

async function pause(call: PauseCall): Promise<Reply> {
  const result = await pauseEndpoint(call.context.db, refOf(call), endOf(call.body));
  switch (result.kind) {
    case 'paused':
      return { status: 200, json: shownEndpoint(result.endpoint) };
    case 'not_found':
      throw absent();
    case 'past':
      throw invalid('until', 'must lie in the future');
  }
}

function endOf(body: PauseCall['body']): PauseEnd {
  return body.for_seconds === undefined ? (body.until ?? null) : { forMs: body.for_seconds * 1_000 };
}

export const endpointSwitchRoutes = [
  defineRoute(
    {
      ...ofOne,
      name: 'enableEndpoint',
      method: 'post',
      path: '/v1/endpoints/{id}/enable',
      summary: 'Enable an endpoint',
      description:
        'It is matched again, what waited for it goes at its own rate, and its breaker starts anew. A pause that runs goes on.',
      answers: theEndpoint,
    },
    (call) => reply(enableEndpoint(call.context.db, refOf(call))),
  ),
  defineRoute(
    {
      ...ofOne,
      name: 'disableEndpoint',
      method: 'post',
      path: '/v1/endpoints/{id}/disable',
      summary: 'Disable an endpoint',
      description: 'It is matched by no further event; what is owed to it waits until it is enabled.',
      answers: theEndpoint,
    },
    (call) => reply(disableEndpoint(call.context.db, refOf(call), 'operator')),
  ),
  defineRoute(
    {
      ...ofOne,
      name: 'pauseEndpoint',
      method: 'post',
      path: '/v1/endpoints/{id}/pause',
      summary: 'Pause an endpoint',
      description:
        'Events still match it; nothing is sent to it until the pause ends. `until` or `for_seconds` gives it an end, neither lets it last until it is resumed. It takes the place of a pause that runs, also of a longer one.',
      body: Pause,
      bodyIsOptional: true,
      answers: theEndpoint,
    },
    pause,
  ),
  defineRoute(
    {
      ...ofOne,
      name: 'resumeEndpoint',
      method: 'post',
      path: '/v1/endpoints/{id}/resume',
      summary: 'End the pause of an endpoint',
      description:
        'Whoever asked for the pause. What waited goes at the own rate of the endpoint. Without a pause it changes nothing.',
      answers: theEndpoint,
    },
    (call) => reply(resumeEndpoint(call.context.db, refOf(call))),
  ),
  defineRoute(
    {
      ...ofOne,
      name: 'resetBreaker',
      method: 'post',
      path: '/v1/endpoints/{id}/breaker/reset',
      summary: 'Close the breaker of an endpoint',
      description:
        'For an endpoint that is known to be back: what waits need not wait for the cooldown. Its failures are forgotten; without any, it changes nothing.',
      answers: theEndpoint,
    },
    (call) => reply(resetBreaker(call.context.db, refOf(call))),
  ),
];
