import { describe, expect, it } from 'vitest';
import { redacted } from './redact.ts';

const TOKEN = 'AAFooBar-secret_0123456789';

describe('what somebody said', () => {
  it('is left as it is when it holds no secret', () => {
    for (const text of ['', 'ok', '{"ok":true}']) expect(redacted(text, TOKEN)).toBe(text);
    expect(redacted('whatever', '')).toBe('whatever');
  });

  it('loses the secret wherever it stands, in whatever letters', () => {
    const text = `no /bot1:${TOKEN}/x, ${TOKEN.toUpperCase()} ${TOKEN.toLowerCase()}${TOKEN}`;
    expect(redacted(text, TOKEN)).toBe('no /bot1:[redacted]/x, [redacted] [redacted][redacted]');
  });

  it('loses the beginning of the secret at its end, where it may have been cut', () => {
    for (let length = 4; length < TOKEN.length; length += 1) {
      expect(redacted(`not found: /${TOKEN.slice(0, length)}`, TOKEN)).toBe('not found: /[redacted]');
    }
    expect(redacted('AAF', TOKEN)).toBe('AAF');
  });

  it('keeps every byte besides, also those that are no text', () => {
    const bytes = Buffer.concat([
      Buffer.from([0xff, 0xc4, 0xb0, 0x00]),
      Buffer.from(TOKEN),
      Buffer.from('ß'),
    ]);
    const left = Buffer.from(redacted(bytes.toString('latin1'), TOKEN), 'latin1');
    expect(left).toEqual(Buffer.concat([Buffer.from([0xff, 0xc4, 0xb0, 0x00]), Buffer.from('[redacted]ß')]));
  });
});
