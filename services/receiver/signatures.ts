import {
  createHmac,
  createPublicKey,
  createSecretKey,
  type KeyObject,
  timingSafeEqual,
  verify,
} from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';

/**
 * Signature checking as a customer would write it from the documentation alone. It shares no line with the code that
 * signs: a mistake made on one side must not be repeated on the other, where it would cancel out and pass.
 */

export type SignatureScheme = 'relay' | 'standard' | 'stripe' | 'github';

export type RejectionReason =
  | 'missing_signature'
  | 'missing_timestamp'
  | 'missing_id'
  | 'malformed_timestamp'
  | 'timestamp_out_of_tolerance'
  | 'malformed_signature'
  | 'signature_mismatch';

export type Verification =
  | { ok: true; scheme: SignatureScheme }
  | { ok: false; scheme: SignatureScheme | null; reason: RejectionReason };

/** The forms of one secret: schemes differ in what they take as the key. */
export interface VerificationKey {
  readonly whole: KeyObject;
  readonly decoded: KeyObject;
  /** Not null where what was given is no secret but the public key of a key pair. */
  readonly ed25519: KeyObject | null;
}

export interface VerifyOptions {
  keys: readonly VerificationKey[];
  /** Seconds since 1970, on the receiver's own clock. */
  nowSeconds: number;
  /** How far the signed timestamp may lie from `nowSeconds`, either way. */
  toleranceSeconds: number;
  /** First part of the `relay` scheme's header names, lower case. */
  headerPrefix: string;
}

/** Prepares a secret once, so that a request costs one HMAC and no key set-up. */
export function verificationKey(secret: string): VerificationKey {
  const encoded = secret.startsWith('whsec_') ? secret.slice('whsec_'.length) : secret;
  return {
    whole: createSecretKey(Buffer.from(secret, 'utf8')),
    decoded: createSecretKey(Buffer.from(encoded, 'base64')),
    ed25519: publicKey(secret),
  };
}

/** `whpk_` and the base64 of 32 bytes. */
function publicKey(text: string): KeyObject | null {
  const bytes = Buffer.from(text.replace(/^whpk_/, ''), 'base64');
  if (!text.startsWith('whpk_') || bytes.length !== 32) return null;
  const jwk = { kty: 'OKP', crv: 'Ed25519', x: bytes.toString('base64url') };
  return createPublicKey({ key: jwk, format: 'jwk' });
}

/**
 * Judges one request by whichever scheme's header it carries; any signature that matches any key is enough, as in a
 * rotation both sides hold two. The body must be the raw bytes received.
 */
export function verifySignature(
  headers: IncomingHttpHeaders,
  body: Buffer,
  options: VerifyOptions,
): Verification {
  const { headerPrefix } = options;
  if (headers[`${headerPrefix}-signature`] !== undefined) return verifyRelay(headers, body, options);
  if (headers['webhook-signature'] !== undefined) return verifyStandard(headers, body, options);
  if (headers['stripe-signature'] !== undefined) return verifyStripe(headers, body, options);
  if (headers['x-hub-signature-256'] !== undefined) return verifyGithub(headers, body, options);
  return { ok: false, scheme: null, reason: 'missing_signature' };
}

/** `Relay-Signature: v1=<hex>[,v1=<hex>]` over `<timestamp>.<body>`. */
function verifyRelay(headers: IncomingHttpHeaders, body: Buffer, options: VerifyOptions): Verification {
  const timestamp = text(headers[`${options.headerPrefix}-timestamp`]);
  const stale = timestampFault(timestamp, options);
  if (stale) return { ok: false, scheme: 'relay', reason: stale };
  const offered = pairs(text(headers[`${options.headerPrefix}-signature`]), 'v1');
  const expected = options.keys.map(({ whole }) => hmac(whole, `${timestamp}.`, body));
  return judge('relay', fromEncoded(offered, 'hex'), expected);
}

/**
 * Standard Webhooks: `webhook-signature: v1,<base64>[ v1,<base64>][ v1a,<base64>]` over `<id>.<timestamp>.<body>`, where `v1a` is Ed25519
 * and checked with the public key.
 */
function verifyStandard(headers: IncomingHttpHeaders, body: Buffer, options: VerifyOptions): Verification {
  const id = text(headers['webhook-id']);
  if (id === '') return { ok: false, scheme: 'standard', reason: 'missing_id' };
  const timestamp = text(headers['webhook-timestamp']);
  const stale = timestampFault(timestamp, options);
  if (stale) return { ok: false, scheme: 'standard', reason: stale };
  const signed = `${id}.${timestamp}.`;
  const parts = text(headers['webhook-signature']).split(' ');
  if (verifiesEd25519(after(parts, 'v1a,'), Buffer.concat([Buffer.from(signed), body]), options.keys)) {
    return { ok: true, scheme: 'standard' };
  }
  const expected = options.keys.map(({ decoded }) => hmac(decoded, signed, body));
  return judge('standard', fromEncoded(after(parts, 'v1,'), 'base64'), expected);
}

function verifiesEd25519(
  offered: readonly string[],
  signed: Buffer,
  keys: readonly VerificationKey[],
): boolean {
  const signatures = offered.map((signature) => Buffer.from(signature, 'base64'));
  return keys.some(
    ({ ed25519 }) => ed25519 !== null && signatures.some((one) => verify(null, signed, ed25519, one)),
  );
}

function after(parts: readonly string[], beginning: string): string[] {
  return parts.filter((part) => part.startsWith(beginning)).map((part) => part.slice(beginning.length));
}

/** `Stripe-Signature: t=<seconds>,v1=<hex>[,v1=<hex>]` over `<timestamp>.<body>`. */
function verifyStripe(headers: IncomingHttpHeaders, body: Buffer, options: VerifyOptions): Verification {
  const header = text(headers['stripe-signature']);
  const timestamp = pairs(header, 't')[0] ?? '';
  const stale = timestampFault(timestamp, options);
  if (stale) return { ok: false, scheme: 'stripe', reason: stale };
  const expected = options.keys.map(({ whole }) => hmac(whole, `${timestamp}.`, body));
  return judge('stripe', fromEncoded(pairs(header, 'v1'), 'hex'), expected);
}

/** `X-Hub-Signature-256: sha256=<hex>` over the body alone: this scheme has no timestamp to judge. */
function verifyGithub(headers: IncomingHttpHeaders, body: Buffer, options: VerifyOptions): Verification {
  const offered = pairs(text(headers['x-hub-signature-256']), 'sha256');
  const expected = options.keys.map(({ whole }) => hmac(whole, '', body));
  return judge('github', fromEncoded(offered, 'hex'), expected);
}

function timestampFault(timestamp: string, options: VerifyOptions): RejectionReason | null {
  if (timestamp === '') return 'missing_timestamp';
  if (!/^\d{1,12}$/.test(timestamp)) return 'malformed_timestamp';
  const distance = Math.abs(options.nowSeconds - Number(timestamp));
  return distance > options.toleranceSeconds ? 'timestamp_out_of_tolerance' : null;
}

function judge(
  scheme: SignatureScheme,
  offered: readonly Buffer[],
  expected: readonly Buffer[],
): Verification {
  if (offered.length === 0) return { ok: false, scheme, reason: 'malformed_signature' };
  const matches = offered.some((candidate) => expected.some((digest) => timingSafeEqual(candidate, digest)));
  return matches ? { ok: true, scheme } : { ok: false, scheme, reason: 'signature_mismatch' };
}

/** Only what decodes to the length of a SHA-256 can be compared at all; the rest is malformed. */
function fromEncoded(signatures: readonly string[], encoding: 'hex' | 'base64'): Buffer[] {
  return signatures
    .map((signature) => Buffer.from(signature, encoding))
    .filter((bytes) => bytes.length === 32);
}

function hmac(key: KeyObject, signedPrefix: string, body: Buffer): Buffer {
  return createHmac('sha256', key).update(signedPrefix).update(body).digest();
}

/** The values of every `name=value` part of a comma-separated header. */
function pairs(header: string, name: string): string[] {
  const values: string[] = [];
  for (const part of header.split(',')) {
    const trimmed = part.trim();
    if (trimmed.startsWith(`${name}=`)) values.push(trimmed.slice(name.length + 1));
  }
  return values;
}

function text(header: string | string[] | undefined): string {
  return header === undefined ? '' : Array.isArray(header) ? header.join(',') : header.trim();
}
