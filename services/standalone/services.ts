import { parseApiConfig } from '../../lib/config/api.ts';
import { parseDispatcherConfig } from '../../lib/config/dispatcher.ts';
import type { Bind, Env } from '../../lib/config/env.ts';
import { parseReconcilerConfig } from '../../lib/config/reconciler.ts';
import type { DestinationPolicyConfig } from '../../lib/config/shared.ts';
import type { RunningService } from '../../lib/runtime/lifecycle.ts';
import type { Logger } from '../../lib/runtime/log.ts';
import { startApi } from '../api/api.ts';
import { startDispatcher } from '../dispatcher/dispatcher.ts';
import { startReconciler } from '../reconciler/reconciler.ts';
import { freeOr, printed } from './binds.ts';

export interface Services {
  api: RunningService & { url: string };
  dispatcher: RunningService & { metricsUrl: string };
  reconciler: RunningService & { metricsUrl: string };
  /** Where deliveries may go. */
  destination: DestinationPolicyConfig;
}

export interface ServicesOptions {
  /** Complete: what each service would read if it ran alone. */
  env: Env;
  metricsBind: Bind;
  version: string;
  logFor: (service: string) => Logger;
  /** For the one line of each attempt. */
  lines: Logger;
  say: (line: string) => void;
}

/** Starts the three services in this process, each with its own settings, metrics and connections, as if it ran alone. */
export async function startServices(options: ServicesOptions): Promise<Services> {
  const { env, metricsBind, version, logFor, lines, say } = options;
  const above = { host: metricsBind.host, port: metricsBind.port === 0 ? 0 : metricsBind.port + 1 };
  const dispatcherBind = await freeOr(metricsBind, say, "the dispatcher's metrics are");
  const reconcilerBind = await freeOr(above, say, "the reconciler's metrics are");
  const withMetrics = (bind: Bind): Env => ({ ...env, RELAY_METRICS_BIND: printed(bind) });
  const apiConfig = parseApiConfig(env);
  const dispatcherConfig = parseDispatcherConfig(withMetrics(dispatcherBind));
  const reconcilerConfig = parseReconcilerConfig(withMetrics(reconcilerBind));
  const [api, dispatcher, reconciler] = await Promise.all([
    startApi({ config: apiConfig, log: logFor('api'), lameDuckMs: 0 }),
    startDispatcher({ config: dispatcherConfig, log: logFor('dispatcher'), lines, version }),
    startReconciler({ config: reconcilerConfig, log: logFor('reconciler') }),
  ]);
  return { api, dispatcher, reconciler, destination: apiConfig.destination };
}
