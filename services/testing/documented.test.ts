import { describe, expect, it } from 'vitest';
import { requireDocumented } from './documented.ts';

const PROBLEM = {
  type: 'urn:relay:problem:endpoint_not_found',
  title: 'No such endpoint',
  status: 404,
  code: 'endpoint_not_found',
  detail: 'there is none',
  request_id: 'r',
};
const ID = '0c07d547-38ed-4fc2-acc0-0fd3995cdfcf';

function answered(status: number, body: unknown, type = 'application/json; charset=utf-8') {
  const text = typeof body === 'string' ? body : JSON.stringify(body);
  return { status, text, headers: new Headers({ 'content-type': type }) };
}

describe('an answer that the document has', () => {
  it.each([
    ['GET', '/v1/tenants?limit=1', answered(200, { count: 0, items: [], next_cursor: null })],
    ['GET', `/v1/endpoints/${ID}`, answered(404, PROBLEM, 'application/problem+json')],
    ['GET', '/healthz', answered(200, 'ok', 'text/plain; charset=utf-8')],
    ['DELETE', `/v1/endpoints/${ID}`, { status: 204, text: '', headers: new Headers() }],
    ['GET', '/nowhere', answered(404, { ...PROBLEM, code: 'route_not_found' }, 'application/problem+json')],
  ])('passes: %s %s', (method, path, answer) => {
    expect(() => requireDocumented(method, path, answer)).not.toThrow();
  });
});

describe('an answer that it has not', () => {
  it.each([
    [
      'a field too many',
      'GET',
      '/v1/tenants',
      answered(200, { count: 0, items: [], next_cursor: null, more: 1 }),
    ],
    ['a field too few', 'GET', '/v1/tenants', answered(200, { count: 0, items: [] })],
    ['another status', 'GET', '/v1/tenants', answered(201, {})],
    ['another media type', 'GET', '/v1/tenants', answered(200, '{}', 'text/html')],
    ['a body where none belongs', 'DELETE', `/v1/endpoints/${ID}`, answered(204, 'x')],
    ['a problem of another route', 'GET', '/v1/tenants', answered(404, PROBLEM, 'application/problem+json')],
    ['a problem as plain JSON', 'GET', `/v1/endpoints/${ID}`, answered(404, PROBLEM)],
    [
      'a problem of another status',
      'GET',
      `/v1/endpoints/${ID}`,
      answered(400, PROBLEM, 'application/problem+json'),
    ],
    [
      'a code that there is not',
      'GET',
      `/v1/endpoints/${ID}`,
      answered(404, { ...PROBLEM, code: 'lost' }, 'application/problem+json'),
    ],
    ['a page of HTML', 'GET', '/v1/tenants', answered(500, '<h1>oops</h1>', 'text/html')],
  ])('is an error: %s', (_what, method, path, answer) => {
    expect(() => requireDocumented(method, path, answer)).toThrow(/undocumented/);
  });
});
