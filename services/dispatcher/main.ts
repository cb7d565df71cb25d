import { parseDispatcherConfig } from '../../lib/config/dispatcher.ts';
import { runService } from '../../lib/runtime/lifecycle.ts';
import { createLineLogger, createLogger } from '../../lib/runtime/log.ts';
import { relayVersion } from '../../lib/runtime/version.ts';
import { startDispatcher } from './dispatcher.ts';

await runService('dispatcher', async () => {
  const config = parseDispatcherConfig(process.env);
  const logging = { service: 'dispatcher', level: config.logLevel, format: config.logFormat };
  const log = createLogger(logging);
  return startDispatcher({ config, log, lines: createLineLogger(logging), version: relayVersion() });
});
