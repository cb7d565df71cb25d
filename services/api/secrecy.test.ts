import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ADMIN_KEY, caller, SECRET_KEYS } from '../testing/api.ts';
import { type ApiProcess, startApiProcess } from '../testing/api-process.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';

let database: TestDatabase;
let api: ApiProcess;

beforeAll(async () => {
  database = await createTestDatabase();
  api = await startApiProcess(database.url, { RELAY_LOG_LEVEL: 'trace' });
});
afterAll(async () => {
  api.kill();
  await database.drop();
});

describe('no secret', () => {
  it('is in a log line, a metric, or an answer that is not its own', async () => {
    const call = caller(api.url);
    const url = 'https://sink.example.com/in';
    const own = await call('POST', '/v1/endpoints', { body: { url, secret: 'brought-along-secret' } });
    const rotated = await call('POST', `/v1/endpoints/${own.json.id}/rotate-secret`);
    const key = await call('POST', '/v1/keys', { body: { scopes: ['read'] } });
    const secrets = [
      'brought-along-secret',
      rotated.json.secret,
      key.json.key,
      ADMIN_KEY,
      ...SECRET_KEYS.split(','),
    ];

    const answers = [
      await call('GET', `/v1/endpoints/${own.json.id}`),
      await call('GET', '/v1/endpoints'),
      await call('GET', '/v1/keys'),
      await call('GET', '/v1/endpoints', { key: `${key.json.key}x` }),
      await call('PATCH', `/v1/endpoints/${own.json.id}`, {
        body: { secret: 'brought-along-secret', nonsense: 1 },
      }),
      await call('POST', '/v1/endpoints', { body: { url: 'https://user:p%40ss-in-url@sink.example.com/' } }),
      await call('POST', '/v1/endpoints', { raw: `{"url":"${url}","secret":"brought-along-secret",` }),
      await call('POST', '/v1/events', { raw: '{"type":"x","card":"payload-content"}' }),
      await call('POST', '/v1/events', { raw: '{"card":"payload-content"}' }),
      await call('GET', `/v1/${key.json.key}`),
      await call('GET', '/metrics'),
    ];
    const text = [...answers.map((answer) => answer.text), api.output()].join('\n');
    for (const secret of [...secrets, 'p%40ss', 'p@ss', 'payload-content'])
      expect(text).not.toContain(secret);
    expect(api.output()).toContain('"route":"/v1/endpoints/{id}/rotate-secret"');
  });
});
