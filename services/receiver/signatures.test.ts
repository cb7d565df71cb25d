import { createHmac, generateKeyPairSync, sign } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { verificationKey, verifySignature } from './signatures.ts';

const NOW = 1_700_000_000;
const BODY = Buffer.from('{"hello":"world"}');
const SECRET = 'whsec_test';
/** The vector that the documentation publishes, so that this side and the signing side cannot drift together. */
const KNOWN_HEX = 'f592bbf3951cfc94e560eecfb5d9dd4da6b0fff2e626235f8ab4b54860925d0b';

const hex = (key: string | Buffer, content: string) =>
  createHmac('sha256', key).update(content).digest('hex');
const base64 = (key: Buffer, content: string) => createHmac('sha256', key).update(content).digest('base64');

function judge(
  headers: Record<string, string>,
  given: { secrets?: string[]; body?: Buffer; now?: number } = {},
) {
  return verifySignature(headers, given.body ?? BODY, {
    keys: (given.secrets ?? [SECRET]).map(verificationKey),
    nowSeconds: given.now ?? NOW,
    toleranceSeconds: 300,
    headerPrefix: 'relay',
  });
}

describe('the relay scheme', () => {
  const signed = { 'relay-timestamp': String(NOW), 'relay-signature': `v1=${KNOWN_HEX}` };

  it('accepts the published vector', () => {
    expect(judge(signed)).toEqual({ ok: true, scheme: 'relay' });
  });

  it('accepts any of several signatures and any of several secrets', () => {
    const other = 'ab'.repeat(32);
    expect(judge({ ...signed, 'relay-signature': `v1=${other},v1=${KNOWN_HEX}` }).ok).toBe(true);
    expect(judge({ ...signed, 'relay-signature': `v1=${KNOWN_HEX}, v1=${other}` }).ok).toBe(true);
    expect(judge(signed, { secrets: ['whsec_new', SECRET] }).ok).toBe(true);
  });

  it('rejects a body that differs in one byte', () => {
    const tampered = Buffer.from('{"hello":"World"}');
    expect(judge(signed, { body: tampered })).toMatchObject({ ok: false, reason: 'signature_mismatch' });
  });

  it('rejects another secret', () => {
    expect(judge(signed, { secrets: ['whsec_other'] })).toMatchObject({ reason: 'signature_mismatch' });
  });

  it('accepts a timestamp 300 s away and no further, either way', () => {
    expect(judge(signed, { now: NOW + 300 }).ok).toBe(true);
    expect(judge(signed, { now: NOW - 300 }).ok).toBe(true);
    for (const now of [NOW + 301, NOW - 301]) {
      expect(judge(signed, { now })).toMatchObject({ ok: false, reason: 'timestamp_out_of_tolerance' });
    }
  });

  it.each([
    ['no timestamp', { 'relay-signature': `v1=${KNOWN_HEX}` }, 'missing_timestamp'],
    ['a timestamp that is no number', { ...signed, 'relay-timestamp': 'soon' }, 'malformed_timestamp'],
    ['a timestamp with a sign', { ...signed, 'relay-timestamp': `+${NOW}` }, 'malformed_timestamp'],
    ['another version alone', { ...signed, 'relay-signature': `v2=${KNOWN_HEX}` }, 'malformed_signature'],
    [
      'a digest cut short',
      { ...signed, 'relay-signature': `v1=${KNOWN_HEX.slice(2)}` },
      'malformed_signature',
    ],
    ['an empty signature', { ...signed, 'relay-signature': '' }, 'malformed_signature'],
  ])('rejects %s', (_, headers, reason) => {
    expect(judge(headers)).toEqual({ ok: false, scheme: 'relay', reason });
  });
});

describe('the standard scheme', () => {
  const key = Buffer.from('0123456789abcdef0123456789abcdef');
  const secret = `whsec_${key.toString('base64')}`;
  const signature = base64(key, `msg_1.${NOW}.${BODY}`);
  const signed = {
    'webhook-id': 'msg_1',
    'webhook-timestamp': String(NOW),
    'webhook-signature': `v1,${signature}`,
  };

  it('takes the decoded secret as the key', () => {
    expect(judge(signed, { secrets: [secret] })).toEqual({ ok: true, scheme: 'standard' });
  });

  it('accepts one match among several signatures parted by spaces', () => {
    const several = `v1a,ignored v1,${Buffer.alloc(32).toString('base64')} v1,${signature}`;
    expect(judge({ ...signed, 'webhook-signature': several }, { secrets: [secret] }).ok).toBe(true);
  });

  it('rejects a message under another id', () => {
    expect(judge({ ...signed, 'webhook-id': 'msg_2' }, { secrets: [secret] })).toMatchObject({
      ok: false,
      reason: 'signature_mismatch',
    });
  });

  it('rejects a message without an id', () => {
    expect(judge({ ...signed, 'webhook-id': '' }, { secrets: [secret] })).toMatchObject({
      reason: 'missing_id',
    });
  });

  it('rejects a stale message', () => {
    expect(judge(signed, { secrets: [secret], now: NOW + 301 })).toMatchObject({
      reason: 'timestamp_out_of_tolerance',
    });
  });
});

describe('the standard scheme with a key pair', () => {
  const pair = generateKeyPairSync('ed25519');
  const shown = (key: typeof pair.publicKey) =>
    `whpk_${key.export({ format: 'der', type: 'spki' }).subarray(-32).toString('base64')}`;
  const signature = sign(null, Buffer.from(`msg_1.${NOW}.${BODY}`), pair.privateKey).toString('base64');
  const secret = `whsec_${Buffer.alloc(32, 7).toString('base64')}`;
  const signed = {
    'webhook-id': 'msg_1',
    'webhook-timestamp': String(NOW),
    'webhook-signature': `v1,${Buffer.alloc(32).toString('base64')} v1a,${signature}`,
  };
  const own = shown(pair.publicKey);

  it('needs the public key alone', () => {
    expect(judge(signed, { secrets: [own] })).toEqual({ ok: true, scheme: 'standard' });
    expect(judge(signed, { secrets: [secret, own] }).ok).toBe(true);
    expect(judge({ ...signed, 'webhook-signature': `v1a,${signature}` }, { secrets: [own] }).ok).toBe(true);
  });

  it('rejects another key, another body, and a signature that is none', () => {
    const other = shown(generateKeyPairSync('ed25519').publicKey);
    const mismatch = { ok: false, reason: 'signature_mismatch' };
    expect(judge(signed, { secrets: [other] })).toMatchObject(mismatch);
    expect(judge(signed, { secrets: [own], body: Buffer.from('{}') })).toMatchObject(mismatch);
    expect(judge(signed, { secrets: [secret] })).toMatchObject(mismatch);
    const cut = { ...signed, 'webhook-signature': `v1a,${signature.slice(8)}` };
    expect(judge(cut, { secrets: [own] })).toMatchObject({ ok: false, reason: 'malformed_signature' });
  });

  it('is not checked with what only looks like a public key', () => {
    expect(judge(signed, { secrets: ['whpk_AAAA'] }).ok).toBe(false);
  });
});

describe('the stripe scheme', () => {
  const header = `t=${NOW},v1=${hex(SECRET, `${NOW}.${BODY}`)}`;

  it('accepts t and v1 in one header', () => {
    expect(judge({ 'stripe-signature': header })).toEqual({ ok: true, scheme: 'stripe' });
  });

  it('rejects a timestamp that was changed after signing', () => {
    expect(judge({ 'stripe-signature': header.replace(String(NOW), String(NOW + 1)) })).toMatchObject({
      reason: 'signature_mismatch',
    });
  });

  it('rejects a header without a timestamp', () => {
    expect(judge({ 'stripe-signature': header.slice(header.indexOf('v1')) })).toMatchObject({
      reason: 'missing_timestamp',
    });
  });
});

describe('the github scheme', () => {
  it('accepts a digest of the body alone', () => {
    expect(judge({ 'x-hub-signature-256': `sha256=${hex(SECRET, String(BODY))}` })).toEqual({
      ok: true,
      scheme: 'github',
    });
  });

  it('rejects a digest made with another secret', () => {
    expect(judge({ 'x-hub-signature-256': `sha256=${hex('other', String(BODY))}` })).toMatchObject({
      reason: 'signature_mismatch',
    });
  });
});

describe('a request without any signature header', () => {
  it('is rejected as unsigned', () => {
    expect(judge({})).toEqual({ ok: false, scheme: null, reason: 'missing_signature' });
  });
});
