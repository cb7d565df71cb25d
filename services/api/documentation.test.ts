import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startTestApi, type TestApi } from '../testing/api.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';
import { printOpenApi } from './openapi-file.ts';

let database: TestDatabase;
let api: TestApi;

beforeAll(async () => {
  database = await createTestDatabase();
  api = await startTestApi(database.url);
});
afterAll(async () => {
  await api.stop();
  await database.drop();
});

const open = (path: string) => api.call('GET', path, { key: null });

describe('the document', () => {
  it('is served to anybody as it is committed', async () => {
    const answer = await open('/openapi.json');
    expect(answer.status).toBe(200);
    expect(answer.json).toEqual(JSON.parse(printOpenApi()));
  });
});

describe('the page', () => {
  it('is served to anybody, and loads nothing but files of this server', async () => {
    const page = await open('/docs');
    expect(page.status).toBe(200);
    const files = [...page.text.matchAll(/(?:src|href)="([^"]+)"/g)].map((match) => match[1]!);
    expect(files).toHaveLength(4);
    for (const file of files) {
      const answer = await open(new URL(file, new URL('/docs', api.url)).pathname);
      expect([file, answer.status, answer.headers.get('x-content-type-options')]).toEqual([
        file,
        200,
        'nosniff',
      ]);
      expect(answer.text.length).toBeGreaterThan(50);
    }
    expect(page.text).not.toMatch(/<script>|<style|style=|\bon\w+=|https?:/);
  });

  it('may do nothing that an attacker could use', async () => {
    const policy = (await open('/docs')).headers.get('content-security-policy');
    expect(policy?.split('; ')).toEqual([
      "default-src 'none'",
      "script-src 'self'",
      "style-src 'self'",
      "img-src 'self' data:",
      "connect-src 'self'",
      "base-uri 'none'",
      "form-action 'none'",
      "frame-ancestors 'none'",
    ]);
  });

  it('reads the document that is served beside it, and asks no validator elsewhere', async () => {
    const { text } = await open('/docs/start.js');
    expect(text).toContain("url: 'openapi.json'");
    expect(text).toContain('validatorUrl: null');
  });

  it.each([
    '/docs/',
    '/docs/package.json',
    '/docs/..%2fpackage.json',
    '/docs/%2e%2e%2f%2e%2e%2fpackage.json',
    '/docs/__proto__',
    '/docs/constructor',
    '/docs/swagger-ui.js',
  ])('has no other file: %s', async (path) => {
    const answer = await open(path);
    expect([answer.status, answer.json.code]).toEqual([404, 'route_not_found']);
  });
});
