import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { parseSecretKeys } from '../../lib/config/secret-keys.ts';
import { projectRoot } from '../../lib/local/home.ts';
import { createPool } from '../../lib/store/pool.ts';
import { requireSecretKeys } from '../../lib/store/secret-box.ts';
import { startTestApi } from '../testing/api.ts';
import { createEmptyDatabase, type TestDatabase } from '../testing/database.ts';
import { givenSecretKeys } from '../testing/secret-keys.ts';

let database: TestDatabase;
beforeAll(async () => {
  database = await createEmptyDatabase();
});
afterAll(() => database.drop());

interface Ended {
  code: number;
  output: string;
}

/** Runs a command of dist to its end. */
function run(script: string, env: Record<string, string>): Promise<Ended> {
  return new Promise((resolve) => {
    execFile(
      process.execPath,
      [join(projectRoot(), 'dist/services', script)],
      { env: { PATH: process.env.PATH, ...env } },
      (error, stdout, stderr) => resolve({ code: Number(error?.code ?? 0), output: stdout + stderr }),
    );
  });
}

describe('the commands', () => {
  it('bring a database up to date, once, and nothing starts on one that is behind', async () => {
    const env = { DATABASE_URL: database.url };
    await expect(startTestApi(database.url)).rejects.toThrow(/npm run migrate/);
    const first = await run('migrate/main.js', env);
    expect(first).toEqual({ code: 0, output: expect.stringMatching(/^migrated: 0001_/) });
    expect(await run('migrate/main.js', env)).toEqual({ code: 0, output: 'the schema is up to date\n' });
  });

  it('encrypt stored secrets again, so that the old key can go', async () => {
    const { setting } = givenSecretKeys(2);
    const [newKey, oldKey] = setting.split(',') as [string, string];
    const api = await startTestApi(database.url, { RELAY_SECRET_KEYS: oldKey });
    await api.call('POST', '/v1/endpoints', { body: { url: 'https://sink.example.com/in' } });
    await api.stop();
    const pool = createPool({ url: database.url, purpose: 'general', max: 1, applicationName: 'test' });
    try {
      await expect(requireSecretKeys(pool, parseSecretKeys(newKey))).rejects.toThrow(/fingerprint/);
      const ended = await run('migrate/reencrypt-secrets.js', {
        DATABASE_URL: database.url,
        RELAY_SECRET_KEYS: `${newKey},${oldKey}`,
      });
      expect(ended).toEqual({ code: 0, output: expect.stringMatching(/^1 endpoints encrypted again/) });
      await requireSecretKeys(pool, parseSecretKeys(newKey));
    } finally {
      await pool.end();
    }
  });

  it('say in one sentence which setting is wrong, and exit 1', async () => {
    for (const [script, env, sentence] of [
      ['migrate/main.js', {}, /^migrate: DATABASE_URL: is required.*\n$/],
      [
        'migrate/reencrypt-secrets.js',
        { DATABASE_URL: database.url },
        /^reencrypt-secrets: RELAY_SECRET_KEYS: .*\n$/,
      ],
      [
        'api/main.js',
        { DATABASE_URL: database.url, RELAY_SECRET_KEYS: givenSecretKeys().setting },
        /^api: .*(RELAY_ADMIN_KEY|RELAY_SECRET_KEYS).*\n$/,
      ],
    ] as const) {
      const ended = await run(script, env);
      expect(ended.code).toBe(1);
      expect(ended.output).toMatch(sentence);
    }
  });
});
