import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import {
  AUDIT_ACTORS,
  BREAKER_STATES,
  DEAD_REASONS,
  DEFERRAL_REASONS,
  DELIVERY_STATUSES,
  DISABLED_REASONS,
  ENDPOINT_JOBS,
  FINISHED_STATUSES,
  OPERATIONAL_SCOPES,
  OUTCOME_CLASSES,
  PAUSE_REASONS,
  PORTAL_SCOPES,
  REPLAY_STATES,
  SCOPES,
  SHOWN_STATUSES,
  SIGNING_SCHEMES,
  TRANSPORTS,
  WAITS,
  WAKE_MODES,
} from '../domain/vocabulary.ts';
import { deliveryMetrics } from '../metrics/delivery.ts';
import { registerProcessMetrics } from '../metrics/process.ts';
import { EMPTY_GAUGES, reconcileMetrics } from '../metrics/reconcile.ts';
import { Metrics } from '../metrics/registry.ts';

let database: TestDatabase;
let client: pg.Client;

beforeAll(async () => {
  database = await createTestDatabase();
  client = new pg.Client({ connectionString: database.url });
  await client.connect();
});
afterAll(async () => {
  await client.end();
  await database.drop();
});

/** The closed list of each column, as the schema has it. */
const COLUMNS: Record<string, readonly string[]> = {
  'api_keys.scopes': SCOPES,
  'audit_log.actor': AUDIT_ACTORS,
  'dead_letters.reason': DEAD_REASONS,
  'deliveries.dead_reason': DEAD_REASONS,
  'deliveries.last_class': OUTCOME_CLASSES,
  'deliveries.status': DELIVERY_STATUSES,
  'delivery_attempts.class': OUTCOME_CLASSES,
  'endpoint_jobs.kind': ENDPOINT_JOBS,
  'endpoints.breaker_state': BREAKER_STATES,
  'endpoints.disabled_reason': DISABLED_REASONS,
  'endpoints.operational_scope': OPERATIONAL_SCOPES,
  'endpoints.paused_reason': PAUSE_REASONS,
  'endpoints.signing_scheme': SIGNING_SCHEMES,
  'endpoints.transport': TRANSPORTS,
  'portal_tokens.scopes': PORTAL_SCOPES,
  'process_heartbeats.role': ['api', 'dispatcher', 'reconciler'],
  'process_heartbeats.wake': WAKE_MODES,
  'queue.deferral_reason': DEFERRAL_REASONS,
  'queue.waiting': WAITS,
  'replay_jobs.reason': DEAD_REASONS,
  'replay_jobs.state': REPLAY_STATES,
  'replay_jobs.status': FINISHED_STATUSES,
};

async function closedLists(): Promise<Record<string, string[]>> {
  const { rows } = await client.query<{ column: string; check: string }>(
    `select c.relname || '.' || a.attname as column, pg_get_constraintdef(k.oid) as check
     from pg_constraint k
     join pg_class c on c.oid = k.conrelid
     join pg_attribute a on a.attrelid = c.oid and k.conkey = array[a.attnum]
     where k.contype = 'c' and a.atttypid in ('text'::regtype, 'text[]'::regtype) and k.connamespace = 'relay'::regnamespace and not c.relispartition
       and pg_get_constraintdef(k.oid) like '%''%'`,
  );
  return Object.fromEntries(
    rows.map(({ column, check }) => [column, [...check.matchAll(/'([^']*)'/g)].map(([, word]) => word!)]),
  );
}

const sorted = (lists: Record<string, readonly string[]>) =>
  Object.fromEntries(Object.entries(lists).map(([name, words]) => [name, [...words].sort()]));

describe('the words of the schema', () => {
  it('are those of the code: the same lists on the same columns, and none besides', async () => {
    expect(sorted(await closedLists())).toEqual(sorted(COLUMNS));
  });

  it('shown are what the view says', async () => {
    const { rows } = await client.query(
      `select distinct relay.shown_status(status, lease) as shown
       from unnest($1::text[]) status, (values (now() + interval '1 s'), (now() - interval '1 s'), (null)) l(lease)`,
      [DELIVERY_STATUSES],
    );
    expect(rows.map((row) => row.shown).sort()).toEqual([...SHOWN_STATUSES].sort());
  });
});

describe('the words of the metrics', () => {
  const metrics = new Metrics({ processMetrics: false });
  const zero = () => 0;
  deliveryMetrics(metrics, {
    inFlight: zero,
    ready: zero,
    readAhead: zero,
    oldestUnsettledMs: zero,
    idleClients: zero,
  });
  reconcileMetrics(metrics, { leader: () => false, gauges: () => EMPTY_GAUGES });
  registerProcessMetrics(metrics, [], { wake: () => 'poll', brokerUp: () => false, loops: () => [] });

  async function labels(name: string, label: string): Promise<string[]> {
    const { values } = await metrics.registry.getSingleMetric(name)!.get();
    return values.map((value) => String((value.labels as Record<string, string>)[label])).sort();
  }

  it('are the same, and each is there before anything happened', async () => {
    // A lost attempt is found by the reconciler, which counts it as a reclaim.
    const sent = OUTCOME_CLASSES.filter((outcome) => outcome !== 'lost');
    expect(await labels('relay_delivery_attempts_total', 'outcome')).toEqual([...sent].sort());
    expect(await labels('relay_deliveries_deferred_total', 'reason')).toEqual([...DEFERRAL_REASONS].sort());
    expect(await labels('relay_deliveries_dead_total', 'reason')).toEqual([...DEAD_REASONS].sort());
    expect(await labels('relay_wake_mode', 'mode')).toEqual([...WAKE_MODES].sort());
    expect(DEAD_REASONS).toEqual(
      expect.arrayContaining(await labels('relay_reconciler_ended_total', 'reason')),
    );
  });
});
