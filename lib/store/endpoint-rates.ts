import type { Pool } from 'pg';

export interface EndpointRate {
  ratePerSecond: number;
  burst: number;
}

/** Reads what these endpoints allow to be sent to them; an id that is not in the answer does not exist. */
export async function readEndpointRates(
  pool: Pool,
  ids: readonly string[],
): Promise<Map<string, EndpointRate>> {
  const { rows } = await pool.query<EndpointRate & { id: string }>({
    name: 'relay_endpoint_rates',
    text: `select id, rate_per_second as "ratePerSecond", burst
      from relay.endpoints
      where id = any($1::uuid[])`,
    values: [ids],
  });
  return new Map(rows.map(({ id, ...rate }) => [id, rate]));
}
