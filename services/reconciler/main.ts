import { parseReconcilerConfig } from '../../lib/config/reconciler.ts';
import { runService } from '../../lib/runtime/lifecycle.ts';
import { createLogger } from '../../lib/runtime/log.ts';
import { startReconciler } from './reconciler.ts';

await runService('reconciler', async () => {
  const config = parseReconcilerConfig(process.env);
  const log = createLogger({ service: 'reconciler', level: config.logLevel, format: config.logFormat });
  return startReconciler({ config, log });
});
