import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { type Accepted, audit, readAccepted, type Seen } from './audit.ts';

const directory = mkdtempSync(join(tmpdir(), 'relay-audit-'));
afterAll(() => rmSync(directory, { recursive: true }));

function promised(...ids: string[]): Accepted {
  return { events: ids.length, deliveries: new Map(ids.map((id) => [id, 1000])), wrongFanOut: 0 };
}

const seen = (delivery_id: string, successes = 1, first_at_ms = 1010): Seen => ({
  delivery_id,
  successes,
  first_at_ms,
});

async function* pages(...all: Seen[][]): AsyncIterable<Seen[]> {
  yield* all;
}

const judge = (accepted: Accepted, ...all: Seen[][]) => audit(accepted, pages(...all), { measuredFromMs: 0 });

describe('the audit', () => {
  it('finds nothing wrong when each delivery arrived once', async () => {
    expect(await judge(promised('a', 'b'), [seen('a')], [seen('b', 1, 1030)])).toMatchObject({
      expected: 2,
      delivered: 2,
      missing: [],
      duplicated: 0,
      unaccepted: 0,
      latency: { count: 2, max: 30 },
    });
  });

  it('names what did not arrive, or was never answered 2xx', async () => {
    const { missing, delivered } = await judge(promised('a', 'b', 'c'), [seen('a'), seen('b', 0)]);
    expect(missing).toEqual(['b', 'c']);
    expect(delivered).toBe(1);
  });

  it('counts deliveries answered more than once', async () => {
    expect(await judge(promised('a', 'b'), [seen('a', 3), seen('b', 2)])).toMatchObject({
      duplicated: 2,
      duplicateRequests: 3,
    });
  });

  it('counts what arrived without a 202 apart', async () => {
    expect(await judge(promised('a'), [seen('a'), seen('x')])).toMatchObject({ delivered: 1, unaccepted: 1 });
  });

  it('leaves the warm-up out of the latency and in the loss', async () => {
    const accepted = promised('early', 'late');
    accepted.deliveries.set('late', 2000);
    const result = await audit(accepted, pages([seen('early'), seen('late', 1, 2007)]), {
      measuredFromMs: 1500,
    });
    expect(result).toMatchObject({ delivered: 2, latency: { count: 1, max: 7 } });
  });
});

describe('the audit, asked about windows', () => {
  it('gives each the latency of what was meant to leave within it', async () => {
    const accepted = promised('a', 'b', 'c');
    accepted.deliveries.set('b', 2000);
    accepted.deliveries.set('c', 3000);
    const { within } = await audit(accepted, pages([seen('a'), seen('b', 1, 2007), seen('c', 1, 3500)]), {
      measuredFromMs: 0,
      windows: {
        early: { fromMs: 0, toMs: 2000 },
        late: { fromMs: 2000, toMs: 9000 },
        empty: { fromMs: 0, toMs: 1 },
      },
    });
    expect(within).toMatchObject({ early: { count: 1, max: 10 }, late: { count: 2, max: 500 }, empty: null });
  });
});

describe('the file of accepted events', () => {
  it('gives each delivery its moment and notices a wrong fan-out', async () => {
    const file = join(directory, 'accepted');
    writeFileSync(
      file,
      '1000.5 {"event_id":"e1","delivery_ids":["a","b"]}\n1001 {"event_id":"e2","delivery_ids":["c"]}\n',
    );
    const accepted = await readAccepted(file, 2);
    expect(accepted.events).toBe(2);
    expect(accepted.wrongFanOut).toBe(1);
    expect([...accepted.deliveries]).toEqual([
      ['a', 1000.5],
      ['b', 1000.5],
      ['c', 1001],
    ]);
  });

  it('holds of a batch what was accepted', async () => {
    const file = join(directory, 'batches');
    const results = [
      { status: 202, event_id: 'e1', delivery_ids: ['a'] },
      { status: 400, code: 'invalid_request', detail: 'x' },
      { status: 202, replayed: true, event_id: 'e2', delivery_ids: [] },
    ];
    writeFileSync(file, `7 ${JSON.stringify({ accepted: 2, results })}\n`);
    const accepted = await readAccepted(file, 1);
    expect([accepted.events, accepted.wrongFanOut, [...accepted.deliveries]]).toEqual([2, 1, [['a', 7]]]);
  });
});
