import http from 'node:http';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  MAX_HEADERS_LENGTH,
  prefixClash,
  validateHeaderName,
  validateHeaderNames,
  validateHeadersLength,
  validateHeaderValue,
} from './custom-headers.ts';

const ALL_BYTES = Array.from({ length: 256 }, (_, code) => String.fromCharCode(code));

describe('the name of a custom header', () => {
  it.each(['Authorization', 'X-Api-Key', 'x', 'a_b', '__proto__', "!#$%&'*+-.^_`|~09", 'n'.repeat(64)])(
    'may be %s',
    (name) => {
      expect(validateHeaderName(name)).toBeNull();
    },
  );

  it('holds only the characters of a token, each of which node agrees to', () => {
    for (const character of ALL_BYTES) {
      const judged = validateHeaderName(`X-${character}`) === null;
      expect(judged).toBe(nodeTakesName(`X-${character}`));
    }
  });

  it.each(['', 'n'.repeat(65), 'a b', 'a:b', 'a\r\nb', 'a\0b', 'ä', 'a\u{1f600}'])(
    'may not be %j',
    (name) => {
      expect(validateHeaderName(name)).toMatch(/^a header name is 1 to 64/);
    },
  );

  it.each([
    'Host',
    'content-length',
    'Content-Type',
    'Content-Encoding',
    'Transfer-Encoding',
    'connection',
    'Keep-Alive',
    'TE',
    'trailer',
    'Upgrade',
    'Expect',
    'User-Agent',
    'HTTP2-Settings',
    'Proxy-Authorization',
    'proxy-connection',
    'Webhook-Id',
    'webhook-signature',
    'Relay-Signature',
    'relay-anything',
    'Stripe-Signature',
    'X-Hub-Signature',
    'X-Hub-Signature-256',
    'X-GitHub-Event',
    'x-github-delivery',
    'traceparent',
    'tracestate',
  ])('may not be %s in any case, and the rule names it', (name) => {
    for (const written of [name, name.toLowerCase(), name.toUpperCase()]) {
      const rule = validateHeaderName(written);
      expect(rule).toMatch(/reserved/);
      expect(rule).toContain(name.toLowerCase().split('-')[0]);
    }
  });
});

function nodeTakesName(name: string): boolean {
  try {
    http.validateHeaderName(name);
    return true;
  } catch {
    return false;
  }
}

describe('the value of a custom header', () => {
  it.each(['x', 'Bearer abc.def', 'a  b', 'a\tb', '~!@', 'v'.repeat(1_024)])('may be %j', (value) => {
    expect(validateHeaderValue(value)).toBeNull();
  });

  it('holds visible ASCII, and spaces and tabs between', () => {
    for (const character of ALL_BYTES) {
      const code = character.charCodeAt(0);
      const inside = code === 9 || (code >= 32 && code <= 126);
      expect(validateHeaderValue(`a${character}b`) === null).toBe(inside);
      const outside = code >= 33 && code <= 126;
      expect(validateHeaderValue(`${character}b`) === null).toBe(outside);
      expect(validateHeaderValue(`b${character}`) === null).toBe(outside);
    }
  });

  it('is refused by a rule that does not repeat it, and never lets a line end through', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary', maxLength: 40 }), (text) => {
        const value = `sesame${text}`;
        const rule = validateHeaderValue(value);
        if (rule === null) expect(value).toMatch(/^[\t\x20-\x7e]+$/);
        else expect(rule).not.toContain('sesame');
      }),
    );
  });

  it('is neither empty nor long', () => {
    expect(validateHeaderValue('')).toContain('1 to 1024');
    expect(validateHeaderValue('v'.repeat(1_025))).toContain('1 to 1024');
  });

  it('takes no time to speak of, whatever it is', () => {
    expect(validateHeaderValue(`a${' '.repeat(1_022)}\n`)).not.toBeNull();
  });
});

describe('custom headers together', () => {
  it('are at most 20', () => {
    const names = Array.from({ length: 21 }, (_, n) => `X-${n}`);
    expect(validateHeaderNames(names.slice(1))).toBeNull();
    expect(validateHeaderNames(names)).toContain('20');
  });

  it('differ in more than case', () => {
    expect(validateHeaderNames(['X-Key', 'x-other', 'x-key'])).toBe('x-key stands there twice');
  });

  it('fit into what receivers accept', () => {
    const value = 'v'.repeat(1_000);
    const headers = Object.fromEntries(Array.from({ length: 6 }, (_, n) => [`X-${n}`, value]));
    expect(validateHeadersLength(headers)).toBeNull();
    expect(validateHeadersLength({ ...headers, 'X-6': value })).toContain(String(MAX_HEADERS_LENGTH));
  });

  it('clash with a prefix that they begin with, in any case', () => {
    expect(prefixClash(['X-Key', 'ACME-Anything'], 'Acme')).toBe('ACME-Anything');
    expect(prefixClash(['X-Key', 'Acmeist', 'X-Acme-Key', 'acme'], 'Acme')).toBeNull();
  });
});
