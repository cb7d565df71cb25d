import type pg from 'pg';
import { RedisLink } from '../../lib/broker/link.ts';
import type { BrokerConfig } from '../../lib/config/shared.ts';
import type { Logger } from '../../lib/runtime/log.ts';
import { createPool, type PoolOptions } from '../../lib/store/pool.ts';

/** The process's link to Redis, which says in the log when Redis goes and comes; null when none is configured. */
export async function startLink(broker: BrokerConfig | null, log: Logger): Promise<RedisLink | null> {
  if (!broker) return null;
  const onChange = (up: boolean, reason: string) =>
    up ? log.info('Redis is there') : log.warn({ reason }, 'Redis is away');
  return new RedisLink({ ...broker, onChange }).start();
}

/** A pool that says in the log when a connection of it died while idle. */
export function loggedPool(options: PoolOptions, log: Logger): pg.Pool {
  return createPool({
    ...options,
    onIdleError: (error) => log.warn({ err: error }, 'an idle database connection died; it is replaced'),
  });
}

export async function endPools(pools: Record<string, pg.Pool>): Promise<void> {
  await Promise.all(Object.values(pools).map((pool) => pool.end()));
}
