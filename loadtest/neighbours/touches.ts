import pg from 'pg';
import type { Window } from '../audit.ts';

/** One look at a delivery of a bad endpoint that wrote its row. */
export interface Touch {
  endpointId: string;
  /** Claimed by a dispatcher, or announced by the reconciler. */
  kind: 'claimed' | 'announced';
  atMs: number;
  /** Not the first of its kind for this delivery. */
  again: boolean;
}

/** Attempt rows by class. */
export type Written = Record<string, number>;

/** What the bad endpoints' deliveries cost, as the database sees it. Works on across a restart of the server. */
export interface TouchLog {
  /** Rows that are neither deferred, nor sent, nor held at this moment: the first pass has not come to them. */
  untouched(): Promise<number>;
  /** Deliveries still owed. */
  owed(): Promise<number>;
  touches(window: Window): Promise<Touch[]>;
  written(window: Window): Promise<Written>;
  /** The rest of the longest cooldown, ms; 0 when no breaker is open. */
  cooldownMs(): Promise<number>;
  close(): Promise<void>;
}

const NOBODY = '00000000-0000-0000-0000-000000000000';

/**
 * Notes each claim and announcement of a delivery of these endpoints in a table, by triggers on the queue. Neither counters nor
 * statistics would do: a claim that is given back leaves no trace, and the bound is on any one second. The other endpoints' rows pay for the
 * comparison alone, with no bad endpoint just as much.
 */
export async function watchTouches(url: string, endpointIds: readonly string[]): Promise<TouchLog> {
  const pool = new pg.Pool({ connectionString: url, application_name: 'relay-loadtest-touches', max: 1 });
  // A restart of the server ends the connection; the next question makes a new one.
  pool.on('error', () => undefined);
  await pool.query(installation(endpointIds));
  const counted = async (condition: string) => {
    const { rows } = await pool.query<{ n: number }>(
      `select count(*)::integer as n from relay.queue where endpoint_id = any($1::uuid[]) ${condition}`,
      [endpointIds],
    );
    return rows[0]!.n;
  };
  return {
    untouched: () => counted('and deferrals = 0 and sends = 0 and lease_expires_at is null'),
    owed: () => counted(''),
    touches: (window) => touches(pool, window),
    written: (window) => written(pool, endpointIds, window),
    cooldownMs: () => cooldownMs(pool, endpointIds),
    close: () => pool.end(),
  };
}

/** Ids are interpolated: a trigger's condition takes no parameters. */
function installation(endpointIds: readonly string[]): string {
  const ids = (endpointIds.length > 0 ? endpointIds : [NOBODY]).map((id) => `'${id}'`).join(', ');
  const trigger = (kind: Touch['kind'], column: string) => `
    create trigger loadtest_${kind} after update of ${column} on relay.queue for each row
    when (new.endpoint_id in (${ids}) and new.${column} is not null and new.${column} is distinct from old.${column})
    execute function loadtest.note_touch('${kind}');`;
  return `
    create schema loadtest;
    create unlogged table loadtest.touches (
      at timestamptz not null, kind text not null, endpoint_id uuid not null, delivery_id uuid not null);
    create function loadtest.note_touch() returns trigger language plpgsql as $$
    begin
      insert into loadtest.touches values (clock_timestamp(), tg_argv[0], new.endpoint_id, new.delivery_id);
      return null;
    end
    $$;
    ${trigger('claimed', 'claim_token')}
    ${trigger('announced', 'announced_at')}`;
}

const inWindow = 'at >= to_timestamp($1::float8 / 1000) and at < to_timestamp($2::float8 / 1000)';

async function touches(pool: pg.Pool, { fromMs, toMs }: Window): Promise<Touch[]> {
  const { rows } = await pool.query<{
    endpoint_id: string;
    kind: Touch['kind'];
    at_ms: number;
    again: boolean;
  }>(
    `select endpoint_id, kind, date_part('epoch', at) * 1000 as at_ms, n > 1 as again
     from (select *, row_number() over (partition by kind, delivery_id order by at) as n from loadtest.touches) numbered
     where ${inWindow}
     order by at`,
    [fromMs, toMs],
  );
  return rows.map((row) => ({
    endpointId: row.endpoint_id,
    kind: row.kind,
    atMs: row.at_ms,
    again: row.again,
  }));
}

async function written(
  pool: pg.Pool,
  endpointIds: readonly string[],
  { fromMs, toMs }: Window,
): Promise<Written> {
  const { rows } = await pool.query<{ class: string; n: number }>(
    `select class, count(*)::integer as n from relay.delivery_attempts
     where ${inWindow} and delivery_id in (select id from relay.deliveries where endpoint_id = any($3::uuid[]))
     group by class`,
    [fromMs, toMs, endpointIds],
  );
  return Object.fromEntries(rows.map((row) => [row.class, row.n]));
}

async function cooldownMs(pool: pg.Pool, endpointIds: readonly string[]): Promise<number> {
  const { rows } = await pool.query<{ ms: number | null }>(
    `select max(date_part('epoch', breaker_until - now()) * 1000) as ms from relay.endpoints where id = any($1::uuid[])`,
    [endpointIds],
  );
  return Math.max(0, rows[0]?.ms ?? 0);
}
