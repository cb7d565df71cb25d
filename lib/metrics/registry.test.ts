import { describe, expect, it } from 'vitest';
import { deliveryMetrics } from './delivery.ts';
import { ingestMetrics } from './ingest.ts';
import { registerProcessMetrics } from './process.ts';
import { EMPTY_GAUGES, type QueueGauges, reconcileMetrics } from './reconcile.ts';
import { Metrics } from './registry.ts';

const zero = () => 0;

function givenMetrics(gauges: () => QueueGauges = () => EMPTY_GAUGES) {
  const metrics = new Metrics({ processMetrics: false });
  const delivery = deliveryMetrics(metrics, {
    inFlight: () => 3,
    ready: zero,
    readAhead: zero,
    oldestUnsettledMs: () => 1_500,
    idleClients: zero,
  });
  ingestMetrics(metrics, { queued: () => 4 });
  reconcileMetrics(metrics, { leader: () => true, gauges });
  registerProcessMetrics(metrics, ['poll', 'sweep'], {
    wake: () => 'poll',
    brokerUp: () => false,
    loops: () => [{ name: 'poll', ageMs: 2_500 }],
  });
  return { metrics, delivery };
}

async function lines(metrics: Metrics): Promise<string[]> {
  return (await metrics.registry.metrics())
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('#'));
}

describe('the metrics of a process in which nothing has happened', () => {
  it('are all there, each counter at zero under every label', async () => {
    const { metrics } = givenMetrics();
    const counters = (await lines(metrics)).filter((line) => /^relay_\w+_total[ {]/.test(line));
    expect(counters.length).toBeGreaterThan(30);
    for (const line of counters) expect(line).toMatch(/ 0$/);
    expect(counters).toContain('relay_delivery_attempts_total{outcome="retryable"} 0');
  });

  it('tell of nothing late as NaN, and of a figure that nobody reads as 0', async () => {
    const text = await lines(givenMetrics().metrics);
    expect(text).toContain('relay_queue_oldest_pending_age_seconds Nan');
    expect(text).toContain('relay_queue_depth{status="pending"} 0');
  });
});

describe('a gauge', () => {
  it('is read when it is scraped', async () => {
    let pending = 1;
    const { metrics } = givenMetrics(() => ({ ...EMPTY_GAUGES, pending }));
    expect(await lines(metrics)).toContain('relay_queue_depth{status="pending"} 1');
    pending = 2;
    expect(await lines(metrics)).toContain('relay_queue_depth{status="pending"} 2');
  });

  it('speaks seconds where the program counts milliseconds', async () => {
    const text = await lines(givenMetrics().metrics);
    expect(text).toContain('relay_settle_oldest_unsettled_seconds 1.5');
    expect(text).toContain('relay_loop_age_seconds{loop="poll"} 2.5');
  });

  it('with two labels tells of each pair', async () => {
    const lag = {
      express: { unreadEntries: 1, unackedEntries: 2, unreadDeliveries: 3 },
      bulk: { unreadEntries: 4, unackedEntries: 5, unreadDeliveries: 6 },
    };
    const text = await lines(givenMetrics(() => ({ ...EMPTY_GAUGES, lag })).metrics);
    expect(text.filter((line) => line.startsWith('relay_broker_lag'))).toEqual([
      'relay_broker_lag{lane="express",state="unread"} 1',
      'relay_broker_lag{lane="express",state="unacked"} 2',
      'relay_broker_lag{lane="bulk",state="unread"} 4',
      'relay_broker_lag{lane="bulk",state="unacked"} 5',
      'relay_broker_lag_deliveries{lane="express"} 3',
      'relay_broker_lag_deliveries{lane="bulk"} 6',
    ]);
  });

  it('shows the state that is on and the states that are not', async () => {
    const text = await lines(givenMetrics().metrics);
    expect(text).toContain('relay_wake_mode{mode="poll"} 1');
    expect(text).toContain('relay_wake_mode{mode="stream"} 0');
    expect(text).toContain('relay_broker_up 0');
  });
});

describe('counting', () => {
  it('adds up, by label', async () => {
    const { metrics, delivery } = givenMetrics();
    delivery.attempts.success.inc();
    delivery.attempts.success.inc(2);
    delivery.consumed.inc(128);
    delivery.duration.observe(0.2);
    const text = await lines(metrics);
    expect(text).toContain('relay_delivery_attempts_total{outcome="success"} 3');
    expect(text).toContain('relay_broker_consumed_total 128');
    expect(text).toContain('relay_delivery_duration_seconds_bucket{le="0.25"} 1');
    expect(text).toContain('relay_delivery_duration_seconds_bucket{le="0.1"} 0');
  });

  it('of one process does not touch another in the same program', async () => {
    const [one, two] = [givenMetrics(), givenMetrics()];
    one.delivery.attempts.success.inc();
    expect(await lines(two.metrics)).toContain('relay_delivery_attempts_total{outcome="success"} 0');
  });
});
