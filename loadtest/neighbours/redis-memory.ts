import { once } from 'node:events';
import { createCommandClient } from '../../lib/broker/client.ts';

/** What a Redis says it uses, bytes. */
export async function redisMemory(url: string): Promise<number> {
  const client = createCommandClient({
    url,
    stream: '',
    group: '',
    keyPrefix: '',
    sentinels: [],
    sentinelName: '',
  });
  try {
    if (client.status !== 'ready') await once(client, 'ready');
    return Number(/^used_memory:(\d+)/m.exec(await client.info('memory'))?.[1]);
  } finally {
    client.disconnect();
  }
}
