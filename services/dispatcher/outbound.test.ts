import { createHmac } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { signingKey } from '../../lib/domain/signing.ts';
import { SIGNING_SCHEMES, type SigningScheme } from '../../lib/domain/vocabulary.ts';
import type { Claim } from '../../lib/store/claims.ts';
import type { HttpDestination } from './endpoint-cache.ts';
import { type HeaderPlanOptions, headerPlan, outboundHeaders } from './outbound.ts';

const BODY = Buffer.from('{"hello":"world"}');
const SECRET = `whsec_${Buffer.alloc(32, 7).toString('base64')}`;
const CLAIM = {
  deliveryId: 'd-1',
  eventId: 'e-1',
  type: 'order.paid',
  contentType: 'application/json',
  sends: 2,
} as Claim;

function sent(signingScheme: SigningScheme, options: Partial<HeaderPlanOptions> = {}): string[] {
  const keys = [signingKey(signingScheme, SECRET)];
  const headers = headerPlan({ prefix: 'Relay', version: '1.2.3', custom: {}, ...options });
  const destination = { signingScheme, signingKeys: () => keys, headers } as unknown as HttpDestination;
  return outboundHeaders(CLAIM, destination, BODY, { timestampSeconds: 1_700_000_000 });
}

const namesOf = (flat: string[]) => flat.filter((_, index) => index % 2 === 0);

describe('the headers of an attempt', () => {
  it('are these, in this order, for an endpoint with nothing of its own', () => {
    const signature = createHmac('sha256', SECRET).update('1700000000.').update(BODY).digest('hex');
    expect(sent('relay')).toEqual([
      ...['Relay-Timestamp', '1700000000'],
      ...['Relay-Signature', `v1=${signature}`],
      ...['Relay-Delivery-Id', 'd-1'],
      ...['content-type', 'application/json'],
      ...['user-agent', 'Relay/1.2.3 (webhooks)'],
      ...['Relay-Event-Type', 'order.paid'],
      ...['Relay-Event-Id', 'e-1'],
      ...['Relay-Attempt', '3'],
    ]);
  });

  it.each(SIGNING_SCHEMES)('name delivery, event and attempt under %s too', (scheme) => {
    expect(namesOf(sent(scheme))).toEqual(
      expect.arrayContaining(['Relay-Delivery-Id', 'Relay-Event-Type', 'Relay-Event-Id', 'Relay-Attempt']),
    );
  });

  it.each(SIGNING_SCHEMES)('show nothing of Relay under another prefix and %s', (scheme) => {
    const flat = sent(scheme, { prefix: 'Acme' });
    expect(flat.join('\n')).not.toMatch(/relay/i);
    expect(flat).toContain('Acme/1.2.3 (webhooks)');
  });

  // Two headers of one name would have two readers of a request disagree about it.
  it.each(SIGNING_SCHEMES)('have no name twice under %s, whatever the prefix', (scheme) => {
    for (const prefix of ['Relay', 'Stripe', 'webhook', 'X-GitHub', 'X-Hub', 'Content', 'User']) {
      const names = namesOf(sent(scheme, { prefix })).map((name) => name.toLowerCase());
      expect(new Set(names).size).toBe(names.length);
    }
  });

  it('end with those of the owner, as they were written', () => {
    const custom = { Authorization: 'Bearer sesame', 'x-Key': 'k' };
    expect(sent('relay', { custom }).slice(-4)).toEqual(['Authorization', 'Bearer sesame', 'x-Key', 'k']);
  });

  it('leave out what has come to be reserved since it was stored: the prefix may be another by now', () => {
    const custom = { 'Acme-Delivery-Id': 'x', Host: 'x', 'X-Key': 'k' };
    const flat = sent('relay', { prefix: 'Acme', custom });
    expect(flat.filter((text) => text === 'x')).toEqual([]);
    expect(flat.slice(-2)).toEqual(['X-Key', 'k']);
  });
});
