import type { Route } from './http/route.ts';
import { auditRoutes } from './routes/audit.ts';
import { deadLetterRoutes } from './routes/dead-letters.ts';
import { deliveryRoutes } from './routes/deliveries.ts';
import { documentationRoutes } from './routes/documentation.ts';
import { endpointKeyPairRoutes } from './routes/endpoint-key-pair.ts';
import { endpointSwitchRoutes } from './routes/endpoint-switches.ts';
import { endpointTestRoute } from './routes/endpoint-test.ts';
import { endpointRoutes } from './routes/endpoints.ts';
import { eventReadRoutes } from './routes/event-reads.ts';
import { postEventRoute } from './routes/events.ts';
import { explainRoutes } from './routes/explain.ts';
import { healthRoutes } from './routes/health.ts';
import { keyRoutes } from './routes/keys.ts';
import { portalRoutes } from './routes/portal.ts';
import { postBatchRoute, postMessageRoute } from './routes/posting.ts';
import { replayRoutes } from './routes/replays.ts';
import { statsRoutes } from './routes/stats.ts';
import { steeringRoutes } from './routes/steering.ts';
import { tenantRoutes } from './routes/tenants.ts';

/** Every route there is: the router, the check of scopes, the metrics and the OpenAPI document all come from this table. */
export const routes: readonly Route[] = [
  postEventRoute,
  postBatchRoute,
  postMessageRoute,
  ...eventReadRoutes,
  ...deliveryRoutes,
  ...steeringRoutes,
  ...explainRoutes,
  ...deadLetterRoutes,
  ...replayRoutes,
  ...endpointRoutes,
  ...endpointKeyPairRoutes,
  ...endpointSwitchRoutes,
  endpointTestRoute,
  ...statsRoutes,
  ...keyRoutes,
  ...portalRoutes,
  ...auditRoutes,
  ...tenantRoutes,
  ...healthRoutes,
  ...documentationRoutes(() => routes),
];
