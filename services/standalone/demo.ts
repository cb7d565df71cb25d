import { type Bind, ConfigurationError } from '../../lib/config/env.ts';
import type { DestinationPolicyConfig } from '../../lib/config/shared.ts';
import { checkDestination } from '../../lib/domain/destination.ts';
import type { Logger } from '../../lib/runtime/log.ts';
import { type Receiver, startReceiver } from '../receiver/server.ts';
import type { ApiClient } from './api-client.ts';
import { ensureDemoEndpoint } from './demo-endpoint.ts';
import { startDemoStream } from './demo-stream.ts';
import { DemoWatch } from './demo-watch.ts';
import { recallEndpoint } from './remembered.ts';

export interface DemoReceiver {
  receiver: Receiver;
  watch: DemoWatch;
}

/**
 * The demo's receiver. It starts before any dispatcher, with the secret of an earlier run: what that run left unsent is sent the moment
 * the services are there.
 */
export async function startDemoReceiver(
  bind: Bind,
  dataDir: string,
  headerPrefix: string,
): Promise<DemoReceiver> {
  const watch = new DemoWatch();
  const remembered = recallEndpoint(dataDir);
  const receiver = await startReceiver({
    ...bind,
    headerPrefix,
    secrets: remembered ? [remembered.secret] : [],
    onDelivery: (delivery) => watch.received(delivery),
  });
  return { receiver, watch };
}

/**
 * Registers the endpoint where it is not, and begins to post events; returns how to end that. Throws ConfigurationError when this Relay may
 * not send to its own machine.
 */
export async function startDemo(
  api: ApiClient,
  { receiver, watch }: DemoReceiver,
  options: { dataDir: string; log: Logger; destination: DestinationPolicyConfig },
): Promise<() => Promise<void>> {
  const url = `${receiver.url}/verify`;
  requireAllowed(url, options.destination);
  const endpoint = await ensureDemoEndpoint(api, options.dataDir, url);
  receiver.setSecrets([endpoint.secret]);
  const stream = startDemoStream(api, watch, options.log);
  return () => stream.stop();
}

function requireAllowed(url: string, destination: DestinationPolicyConfig): void {
  const checked = checkDestination(url, destination);
  if (checked.ok) return;
  throw new ConfigurationError(
    `the demo sends to ${url}, which RELAY_ALLOW_PRIVATE_ENDPOINTS, RELAY_REQUIRE_HTTPS or RELAY_ALLOWED_PORTS forbids ` +
      `(${checked.rule}): run without it (npm start -- --no-demo)`,
  );
}
