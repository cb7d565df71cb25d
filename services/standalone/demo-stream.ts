import { randomUUID } from 'node:crypto';
import type { Logger } from '../../lib/runtime/log.ts';
import { Loop } from '../../lib/runtime/loop.ts';
import type { ApiClient } from './api-client.ts';
import type { DemoWatch } from './demo-watch.ts';

const EVERY_MS = 500;

const EVENTS = [
  () => ({ type: 'demo.order.paid', data: { order: serial(), amount: cents(), currency: 'EUR' } }),
  () => ({ type: 'demo.user.signed_up', data: { user: serial(), plan: pick(['free', 'team', 'business']) } }),
  () => ({ type: 'demo.order.shipped', data: { order: serial(), carrier: pick(['post', 'courier']) } }),
  () => ({ type: 'demo.invoice.sent', data: { invoice: serial(), total: cents(), due_days: 30 } }),
];

/** Posts about two events a second, of several types in turn; an API that refuses is tried again, ever more slowly. */
export function startDemoStream(api: ApiClient, watch: DemoWatch, log: Logger): Loop {
  let count = 0;
  return new Loop({
    name: 'demo-stream',
    log,
    async round() {
      const { type, data } = EVENTS[count % EVENTS.length]!();
      count += 1;
      const id = randomUUID();
      watch.posted(id);
      await api.post('/v1/events', { type, id, created_at: new Date().toISOString(), data });
      return EVERY_MS * (0.6 + Math.random() * 0.8);
    },
  }).start();
}

function serial(): number {
  return 10_000 + Math.floor(Math.random() * 90_000);
}

function cents(): number {
  return Math.round(Math.random() * 50_000) / 100;
}

function pick(choices: readonly string[]): string {
  return choices[Math.floor(Math.random() * choices.length)]!;
}
