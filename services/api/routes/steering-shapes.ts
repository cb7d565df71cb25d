import { z } from 'zod';
import { DeliveryShape } from './shapes.ts';

const id = () => z.string().meta({ format: 'uuid' });

export const DeliveryCancellationShape = z
  .strictObject({ delivery: DeliveryShape })
  .meta({ id: 'DeliveryCancellation' });

export const EventCancellationShape = z
  .strictObject({
    event_id: id(),
    cancelled: z.int().meta({ description: 'Deliveries whose end this call asked for.' }),
    fan_out_stopped: z
      .boolean()
      .meta({ description: 'Whether there were endpoints that had no delivery yet; they get none.' }),
  })
  .meta({ id: 'EventCancellation' });

export const ResendShape = z
  .strictObject({
    delivery_id: id(),
    generation: z.int().meta({ description: 'One more than before.' }),
  })
  .meta({ id: 'Resend' });

export const EndpointTestShape = z
  .strictObject({ event_id: id(), delivery_id: id() })
  .meta({ id: 'EndpointTest' });
