import { describe, expect, it } from 'vitest';
import { createLedger } from './ledger.ts';

describe('the ledger', () => {
  it('keeps the first arrival and counts requests and successes of a delivery', () => {
    const ledger = createLedger();
    ledger.answered(ledger.arrived('d1', 'e1', 100), 503);
    ledger.answered(ledger.arrived('d1', 'e1', 250), 200);
    expect(ledger.find('d1')).toEqual({
      delivery_id: 'd1',
      event_id: 'e1',
      requests: 2,
      successes: 1,
      first_at_ms: 100,
    });
    expect(ledger.summary()).toMatchObject({ requests: 2, deliveries: 1, delivered: 1, duplicates: 0 });
  });

  it('calls a second success a duplicate', () => {
    const ledger = createLedger();
    for (const at of [1, 2, 3]) ledger.answered(ledger.arrived('d1', 'e1', at), 204);
    expect(ledger.summary()).toMatchObject({ delivered: 1, duplicates: 2 });
  });

  it('keeps every delivery when its arrays have grown', () => {
    const ledger = createLedger();
    const count = 5000;
    for (let n = 0; n < count; n += 1) ledger.answered(ledger.arrived(`d${n}`, `e${n}`, n), 200);
    const page = ledger.page(1000, count);
    expect(page).toHaveLength(count - 1000);
    expect(page[0]).toMatchObject({ delivery_id: 'd1000', successes: 1, first_at_ms: 1000 });
    expect(ledger.page(0, 10)).toHaveLength(10);
    expect(ledger.page(count, 10)).toEqual([]);
  });

  it('does not count an answer whose arrival was forgotten in between', () => {
    const ledger = createLedger();
    const row = ledger.arrived('d1', 'e1', 1);
    ledger.reset();
    ledger.answered(row, 200);
    expect(ledger.summary()).toEqual({
      requests: 0,
      deliveries: 0,
      delivered: 0,
      duplicates: 0,
      first_at_ms: null,
      last_at_ms: null,
    });
  });
});
