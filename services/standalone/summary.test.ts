import { describe, expect, it } from 'vitest';
import { type Status, statusBlock, statusLine } from './summary.ts';

const NOW = new Date(2026, 11, 1, 12, 0, 5);

function status(changes: Partial<Status> = {}): Status {
  return {
    since: new Date(NOW.getTime() - 3_725_000),
    now: NOW,
    counted: { accepted: 1234, delivered: 1230, retries: 2, dead: 1, mode: 'stream' },
    queue: { size: 3, capped: false },
    demo: {
      verified: 1228,
      rejected: 0,
      p50Ms: 8.4,
      p99Ms: null,
      recent: [
        {
          at: NOW,
          type: 'demo.order.paid',
          deliveryId: '01a22fc3-bc81-7000-8cbb-11e8ab130001',
          attempt: 2,
          status: 200,
          verified: true,
          latencyMs: 12,
        },
      ],
    },
    ...changes,
  };
}

describe('the status', () => {
  it('is a line on a pipe', () => {
    expect(statusLine(status())).toBe(
      '12:00:05 accepted 1,234, delivered 1,230, verified 1,228, retries 2, dead 1, queue 3, p50 8 ms, p99 -, stream mode',
    );
  });

  it('is a block on a terminal, with the last deliveries', () => {
    const text = statusBlock(status()).join('\n');
    expect(text).toContain('up 01:02:05 since 10:58:00, stream mode');
    expect(text).toMatch(/accepted +1,234 +delivered +1,230 +verified +1,228/);
    expect(text).toMatch(/demo\.order\.paid +01a22fc3-\S+ +attempt 2 +200 verified +12 ms/);
  });

  it('does not hide deliveries whose signature was rejected', () => {
    const demo = { ...status().demo!, rejected: 4 };
    expect(statusLine(status({ demo }))).toContain('verified 1,228 (4 rejected)');
  });

  it('says so when something does not answer', () => {
    const line = statusLine(status({ counted: null, queue: null }));
    expect(line).toContain('accepted ?');
    expect(line).toContain('queue ?');
    expect(line).toContain('a service does not answer');
  });

  it('says when a queue was too long to be counted', () => {
    expect(statusLine(status({ queue: { size: 100_000, capped: true } }))).toContain('queue over 100,000');
  });

  it('leaves out the demo where there is none', () => {
    expect(statusLine(status({ demo: null }))).toBe(
      '12:00:05 accepted 1,234, delivered 1,230, retries 2, dead 1, queue 3, stream mode',
    );
  });
});
