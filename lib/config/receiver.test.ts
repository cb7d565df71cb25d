import { describe, expect, it } from 'vitest';
import { parseReceiverConfig } from './receiver.ts';

describe('the receiver settings', () => {
  it('default to a private port and the documented secret', () => {
    expect(parseReceiverConfig({})).toMatchObject({
      bind: { host: '127.0.0.1', port: 9099 },
      secrets: ['whsec_test'],
      headerPrefix: 'Relay',
    });
  });

  it('take several secrets', () => {
    expect(parseReceiverConfig({ RELAY_RECEIVER_SECRET: 'whsec_a, whsec_b' }).secrets).toEqual([
      'whsec_a',
      'whsec_b',
    ]);
  });

  it.each([
    [{ RELAY_RECEIVER_BIND: 'nowhere' }, /RELAY_RECEIVER_BIND/],
    [{ RELAY_RECEIVER_SECRET: 'whsec_a,' }, /RELAY_RECEIVER_SECRET/],
    [{ RELAY_HEADER_PREFIX: 'no spaces' }, /RELAY_HEADER_PREFIX/],
  ])('refuse %j', (env, message) => {
    expect(() => parseReceiverConfig(env)).toThrow(message);
  });
});
