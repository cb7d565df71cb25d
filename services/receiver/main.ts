import { parseReceiverConfig } from '../../lib/config/receiver.ts';
import { runService } from '../../lib/runtime/lifecycle.ts';
import { createLogger } from '../../lib/runtime/log.ts';
import { startReceiver } from './server.ts';

await runService('receiver', async () => {
  const { bind, secrets, headerPrefix, logLevel, logFormat } = parseReceiverConfig(process.env);
  const log = createLogger({ service: 'receiver', level: logLevel, format: logFormat });
  const receiver = await startReceiver({ ...bind, secrets, headerPrefix });
  log.info({ url: receiver.url }, 'receiver listening');
  return {
    async stop() {
      await receiver.close();
      log.info(receiver.counts(), 'receiver stopped');
    },
  };
});
