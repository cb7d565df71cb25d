import { cancelDelivery, cancelEvent } from '../../../lib/store/cancel.ts';
import { findDelivery } from '../../../lib/store/deliveries-read.ts';
import { type ResendResult, resendDelivery } from '../../../lib/store/resend.ts';
import { idParams } from '../http/fields.ts';
import { Problem, tryAgain } from '../http/problem.ts';
import { type Call, defineRoute, type Reply } from '../http/route.ts';
import { noDelivery, noEvent, shownDelivery } from './delivery-answers.ts';
import { DeliveryCancellationShape, EventCancellationShape, ResendShape } from './steering-shapes.ts';

type IdCall = Call<{ id: string }, Record<string, never>, Record<string, never>>;

const busy = () => tryAgain('delivery_busy', 'somebody else is changing this delivery', 1);

async function cancel({ context, tenantId, params }: IdCall): Promise<Reply> {
  const result = await cancelDelivery(context.db, tenantId, params.id);
  switch (result.kind) {
    case 'cancelling': {
      const delivery = await findDelivery(context.db, tenantId, params.id);
      if (!delivery) throw noDelivery();
      return { status: 202, json: { delivery: shownDelivery(delivery) } };
    }
    case 'finished':
      throw new Problem('delivery_finished', `the delivery has ended already: it is ${result.status}`);
    case 'busy':
      throw busy();
    case 'not_found':
      throw noDelivery();
  }
}

async function resend({ context, tenantId, params }: IdCall): Promise<Reply> {
  const result = await resendDelivery(context.pool, tenantId, params.id);
  if (result.kind !== 'resent') throw whyNotResent(result);
  return { status: 202, json: { delivery_id: params.id, generation: result.generation } };
}

function whyNotResent({ kind }: Exclude<ResendResult, { kind: 'resent' }>): Problem {
  switch (kind) {
    case 'still_owed':
      return new Problem('still_owed', 'the delivery has not ended: its own attempt comes');
    case 'endpoint_deleted':
      return new Problem('endpoint_deleted', 'its endpoint is deleted, so there is nowhere to send it');
    case 'event_missing':
      return new Problem(
        'event_not_found',
        'its event is not stored any longer, so there is nothing to send',
      );
    case 'too_often':
      return new Problem('replayed_too_often', 'it has been sent again more than 32,000 times');
    case 'busy':
      return busy();
    case 'not_found':
      return noDelivery();
  }
}

export const steeringRoutes = [
  defineRoute(
    {
      name: 'cancelDelivery',
      method: 'post',
      path: '/v1/deliveries/{id}/cancel',
      access: 'manage',
      tag: 'Deliveries',
      summary: 'Stop a delivery that is owed',
      description:
        'It ends dead, `cancelled`, within moments. A request that is open is not cut off: when it succeeds, the delivery has succeeded, and any other end is `cancelled`. May be called again.',
      params: idParams,
      answers: [{ status: 202, description: 'Its end is asked for', schema: DeliveryCancellationShape }],
      problems: ['delivery_not_found', 'delivery_finished', 'delivery_busy'],
    },
    cancel,
  ),
  defineRoute(
    {
      name: 'resendDelivery',
      method: 'post',
      path: '/v1/deliveries/{id}/resend',
      access: 'replay',
      reach: 'delivery',
      tag: 'Deliveries',
      summary: 'Send a delivery again that has ended, however it ended',
      description:
        'One that succeeded too. It is pending again at once, under the same id, one generation on and with a fresh budget of attempts; its history is kept. Its receiver may know the id, and take it for a repetition.',
      params: idParams,
      answers: [{ status: 202, description: 'It will be sent', schema: ResendShape }],
      problems: [
        'delivery_not_found',
        'event_not_found',
        'still_owed',
        'endpoint_deleted',
        'replayed_too_often',
        'delivery_busy',
      ],
    },
    resend,
  ),
  defineRoute(
    {
      name: 'cancelEvent',
      method: 'post',
      path: '/v1/events/{id}/cancel',
      access: 'manage',
      tag: 'Events',
      summary: 'Stop everything that is owed of an event',
      description:
        'Each of its deliveries that has not ended is stopped as by its own cancel route, and endpoints that have no delivery of it yet get none. May be called again.',
      params: idParams,
      answers: [{ status: 202, description: 'Their end is asked for', schema: EventCancellationShape }],
      problems: ['event_not_found'],
    },
    async ({ context, tenantId, params }) => {
      const done = await cancelEvent(context.db, tenantId, params.id);
      if (!done) throw noEvent();
      const json = {
        event_id: params.id,
        cancelled: done.cancelled,
        fan_out_stopped: done.fanOutStopped,
      };
      return { status: 202, json };
    },
  ),
];
