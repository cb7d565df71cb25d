import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../services/testing/database.ts';
import { givenHistory } from '../../services/testing/given-history.ts';
import { givenEndpoint, givenTenant } from '../../services/testing/given-queue.ts';
import { matchesPattern } from '../domain/event-type.ts';
import { createDatabase, type Database } from './database.ts';
import { createPool } from './pool.ts';
import { countSelection, replayBound } from './replay-jobs.ts';
import {
  type ReplayFilter,
  type ReplaySelection,
  startOfWalk,
  type WalkPage,
  walkOn,
  walkQuery,
} from './replay-walk.ts';

let database: TestDatabase;
let pool: pg.Pool;
let db: Database;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = createPool({ url: database.url, purpose: 'sweep', max: 2, applicationName: 'test' });
  db = createDatabase(pool);
});
afterAll(async () => {
  await pool.end();
  await database.drop();
});

const EVERYTHING: ReplayFilter = {
  status: 'dead',
  endpointId: null,
  eventType: null,
  reason: null,
  from: null,
  to: null,
};

async function selectionOf(tenantId: string, filter: Partial<ReplayFilter> = {}): Promise<ReplaySelection> {
  return { ...EVERYTHING, ...filter, tenantId, endedBy: await replayBound(db) };
}

async function walkAll(selection: ReplaySelection, look: number, take: number): Promise<string[]> {
  const ids: string[] = [];
  let page: WalkPage = { matched: 0, ids: [], next: startOfWalk(selection), more: true };
  while (page.more) {
    page = await walkOn(db, selection, { after: page.next, look, take });
    expect(page.ids.length).toBeLessThanOrEqual(take);
    ids.push(...page.ids);
  }
  return ids;
}

interface Known {
  id: string;
  endpointId: string;
  status: string;
  reason: string | null;
  type: string;
  acceptedAt: Date;
  endedAt: Date;
}

async function everyDelivery(tenantId: string): Promise<Known[]> {
  const { rows } = await pool.query<Known>(
    `select d.id, d.endpoint_id as "endpointId", d.status, d.dead_reason as reason, e.type, e.created_at as "acceptedAt",
       d.finished_at as "endedAt"
     from relay.deliveries d join relay.events e on e.id = d.event_id where d.tenant_id = $1 order by d.finished_at, d.id`,
    [tenantId],
  );
  return rows;
}

function isSelected(one: Known, filter: ReplayFilter): boolean {
  const at = filter.status === 'dead' ? one.endedAt : one.acceptedAt;
  return (
    one.status === filter.status &&
    (!filter.endpointId || one.endpointId === filter.endpointId) &&
    (!filter.eventType || matchesPattern(filter.eventType, one.type)) &&
    (!filter.reason || one.reason === filter.reason) &&
    (!filter.from || at >= filter.from) &&
    (!filter.to || at < filter.to)
  );
}

async function givenMixedHistory(tenantId: string, events = 24): Promise<string[]> {
  const endpointIds = [
    await givenEndpoint(pool, { tenantId, patterns: ['nothing.else'] }),
    await givenEndpoint(pool, { tenantId, patterns: ['nothing.else'] }),
  ];
  await givenHistory(pool, {
    tenantId,
    endpointIds,
    events,
    types: ['order.paid', 'order.lost', 'user.made'],
    statuses: ['dead', 'succeeded', 'pending', 'succeeded', 'dead'],
    reasons: ['gone', 'expired'],
  });
  // Some events match nothing.
  await givenHistory(pool, { tenantId, endpointIds: [], events, everyMs: 1_100 });
  return endpointIds;
}

describe('what a replay job selects', () => {
  it('is what passes its filters, oldest first, in pages of any size, and a count agrees', async () => {
    const [tenantId, stranger] = [await givenTenant(pool), await givenTenant(pool)];
    const [endpointId] = await givenMixedHistory(tenantId);
    await givenMixedHistory(stranger);
    const all = await everyDelivery(tenantId);
    const [from, to] = [all[9]!.acceptedAt, all[36]!.endedAt];
    let selections = 0;
    for (const status of ['dead', 'succeeded'] as const) {
      for (const endpoint of [null, endpointId!]) {
        for (const eventType of [null, '*', 'order.*', 'user.made', 'user']) {
          for (const reason of status === 'dead' ? [null, 'gone' as const] : [null]) {
            for (const range of [{}, { from }, { to }, { from, to }]) {
              const filter = { status, endpointId: endpoint, eventType, reason, ...range };
              const selection = await selectionOf(tenantId, filter);
              const expected = all.filter((one) => isSelected(one, selection)).map((one) => one.id);
              for (const [look, take] of [
                [1, 1],
                [7, 3],
                [500, 500],
              ] as const) {
                expect(await walkAll(selection, look, take), JSON.stringify(filter)).toEqual(expected);
              }
              const counted = await countSelection(db, selection, { forMs: 60_000, look: 5 });
              expect(counted).toMatchObject({ matched: expected.length, more: false });
              selections += expected.length;
            }
          }
        }
      }
    }
    expect(selections).toBeGreaterThan(500);
  });

  it('is nothing of another tenant’s, also when its endpoint is named', async () => {
    const [tenantId, stranger] = [await givenTenant(pool), await givenTenant(pool)];
    const [endpointId] = await givenMixedHistory(tenantId);
    for (const status of ['dead', 'succeeded'] as const) {
      for (const endpoint of [null, endpointId!]) {
        const selection = await selectionOf(stranger, { status, endpointId: endpoint });
        expect(await walkAll(selection, 100, 100)).toEqual([]);
      }
    }
  });

  it('is nothing that ended after the job was made', async () => {
    const tenantId = await givenTenant(pool);
    const [endpointId] = await givenMixedHistory(tenantId);
    for (const status of ['dead', 'succeeded'] as const) {
      for (const endpoint of [null, endpointId!]) {
        const selection = await selectionOf(tenantId, { status, endpointId: endpoint });
        const [first, ...rest] = await walkAll(selection, 100, 100);
        await pool.query(`update relay.deliveries set finished_at = now() where id = $1`, [first]);
        await pool.query(`update relay.dead_letters set died_at = now() where delivery_id = $1`, [first]);
        expect(await walkAll(selection, 100, 100)).toEqual(rest);
      }
    }
  });

  it('is counted on from where a count stopped', async () => {
    const tenantId = await givenTenant(pool);
    await givenMixedHistory(tenantId);
    const selection = await selectionOf(tenantId);
    const whole = await countSelection(db, selection, { forMs: 60_000 });
    const part = await countSelection(db, selection, { forMs: 0, look: 5 });
    expect(part.more).toBe(true);
    const rest = await walkOn(db, selection, { after: part.after, look: 1_000, take: 0 });
    expect(part.matched + rest.matched).toBe(whole.matched);
  });
});

const LARGE = 30_000;

describe('a step of a walk through a large table', () => {
  it('reads what it looks at and little more, from its middle too, before and after the tables are analysed', async () => {
    const [tenantId, stranger] = [await givenTenant(pool), await givenTenant(pool)];
    const endpointIds = [
      await givenEndpoint(pool, { tenantId, patterns: ['nothing.else'] }),
      await givenEndpoint(pool, { tenantId, patterns: ['nothing.else'] }),
    ];
    const statuses = ['dead', 'succeeded'] as const;
    const history = { events: LARGE / 2, everyMs: 10 };
    await givenHistory(pool, { ...history, tenantId: stranger, endpointIds: endpointIds.slice(1), statuses });
    await givenHistory(pool, {
      ...history,
      tenantId,
      endpointIds,
      statuses: ['dead', 'succeeded', 'succeeded', 'dead'],
    });
    const middle = new Date(Date.now() - 3_600_000 - (LARGE / 4) * 10);
    const look = 500;
    for (const analysed of [false, true]) {
      if (analysed) await pool.query('analyze relay.dead_letters, relay.deliveries, relay.events');
      for (const status of statuses) {
        for (const endpointId of [null, endpointIds[0]!]) {
          for (const eventType of [null, 'order.*']) {
            const selection = await selectionOf(tenantId, { status, endpointId, eventType, from: middle });
            const cost = await pagesRead(selection, look);
            // A row of the walk, and at most its event or the range of its deliveries: a few pages each.
            expect(cost, `${status} ${endpointId} ${eventType} ${analysed}`).toBeLessThan(4 * look);
          }
        }
      }
    }
  });
});

/** Pages that the statement looks at, on a connection with the settings of a sweep. */
async function pagesRead(selection: ReplaySelection, look: number): Promise<number> {
  const { sql: text, parameters } = walkQuery(selection, {
    after: startOfWalk(selection),
    look,
    take: 50,
  }).compile(db);
  const { rows } = await pool.query(`explain (analyze, buffers, format json) ${text}`, [...parameters]);
  const [{ Plan }] = rows[0]['QUERY PLAN'];
  expect(JSON.stringify(Plan)).not.toContain('"Seq Scan"');
  return Plan['Shared Hit Blocks'] + Plan['Shared Read Blocks'];
}
