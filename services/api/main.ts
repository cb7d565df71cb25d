import { parseApiConfig } from '../../lib/config/api.ts';
import { runService } from '../../lib/runtime/lifecycle.ts';
import { createLogger } from '../../lib/runtime/log.ts';
import { startApi } from './api.ts';

await runService('api', async () => {
  const config = parseApiConfig(process.env);
  const log = createLogger({ service: 'api', level: config.logLevel, format: config.logFormat });
  return startApi({ config, log });
});
