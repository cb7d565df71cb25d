import { describe, expect, it } from 'vitest';
import { REDACTED, redacted } from './redact.ts';

describe('what is kept of a request', () => {
  it('holds no secret, however deep it stands, and says that there was one', () => {
    const fields = {
      secret: 's3cret',
      url: 'https://sink.example.com/',
      nested: { api_key: 's3cret', list: [{ password: 's3cret', name: 'kept' }] },
      headers: { 'x-tenant': 's3cret', authorization: 's3cret' },
      token: null,
    };
    const kept = redacted(fields);
    expect(JSON.stringify(kept)).not.toContain('s3cret');
    expect(kept).toEqual({
      secret: REDACTED,
      url: 'https://sink.example.com/',
      nested: { api_key: REDACTED, list: [{ password: REDACTED, name: 'kept' }] },
      headers: { 'x-tenant': REDACTED, authorization: REDACTED },
      token: null,
    });
  });

  it('leaves out what was not given, and keeps moments, lists, numbers and nulls as they are', () => {
    const until = new Date(0);
    expect(redacted({ a: undefined, until, types: ['x', 1, null, true], none: null })).toEqual({
      until,
      types: ['x', 1, null, true],
      none: null,
    });
  });

  it('holds only characters that Postgres can store, in names too', () => {
    expect(redacted({ 'a\0': 'b\0c\uD800', list: ['\uDFFF', '🙂'] })).toEqual({
      'a\uFFFD': 'b\uFFFDc\uFFFD',
      list: ['\uFFFD', '🙂'],
    });
  });
});
