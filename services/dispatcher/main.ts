import { parseDispatcherConfig } from '../../lib/config/dispatcher.ts';
import { runService } from '../../lib/runtime/lifecycle.ts';
import { createLogger } from '../../lib/runtime/log.ts';
import { relayVersion } from '../../lib/runtime/version.ts';
import { startDispatcher } from './dispatcher.ts';

await runService('dispatcher', async () => {
  const config = parseDispatcherConfig(process.env);
  const log = createLogger({ service: 'dispatcher', level: config.logLevel, format: config.logFormat });
  return startDispatcher({ config, log, version: relayVersion() });
});
