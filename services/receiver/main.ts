import { pino } from 'pino';
import pretty from 'pino-pretty';
import { parseReceiverConfig } from '../../lib/config/receiver.ts';
import { startReceiver } from './server.ts';

const log = process.stdout.isTTY ? pino(pretty({ sync: true })) : pino();

try {
  const { bind, secrets, headerPrefix } = parseReceiverConfig(process.env);
  const receiver = await startReceiver({ ...bind, secrets, headerPrefix });
  log.info({ url: receiver.url }, 'receiver listening');
  let stopping = false;
  const stop = async (signal: NodeJS.Signals) => {
    if (stopping) process.exit(1);
    stopping = true;
    await receiver.close();
    log.info({ signal, ...receiver.counts() }, 'receiver stopped');
    process.exit(0);
  };
  process.on('SIGTERM', stop);
  process.on('SIGINT', stop);
} catch (error) {
  log.fatal({ err: error }, 'receiver could not start');
  process.exitCode = 1;
}
