import { execFile } from 'node:child_process';
import { join } from 'node:path';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { projectRoot } from '../../lib/local/home.ts';
import { createTestDatabase, type TestDatabase } from '../testing/database.ts';

let database: TestDatabase;
let client: pg.Client;
beforeAll(async () => {
  database = await createTestDatabase();
  client = new pg.Client(database.url);
  await client.connect();
});
afterAll(async () => {
  await client.end();
  await database.drop();
});

const SCRIPT = join(projectRoot(), 'dist/services/migrate/check-invariants.js');

function check(...words: string[]): Promise<{ code: number; output: string }> {
  return new Promise((resolve) => {
    const env = { PATH: process.env.PATH, DATABASE_URL: database.url };
    execFile(process.execPath, [SCRIPT, ...words], { env }, (error, stdout, stderr) =>
      resolve({ code: Number(error?.code ?? 0), output: stdout + stderr }),
    );
  });
}

describe('the command that checks the invariants', () => {
  it('finds no fault in an empty record', async () => {
    const { code, output } = await check();
    expect(output).toMatch(/^deliveriesChecked: 0\n[\s\S]*\nno fault\n$/);
    expect(code).toBe(0);
  });

  it('counts a fault without touching it, repairs it, and exits 1 for it each time', async () => {
    // A dead letter of a delivery that never was: the one fault that needs no delivery to plant it.
    await client.query(
      `insert into relay.dead_letters (delivery_id, endpoint_id, event_id, tenant_id, reason)
       select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'gone'`,
    );
    for (const words of [['--count'], []]) {
      const { code, output } = await check(...words);
      expect(output).toMatch(/^deadLetterWithoutDead: 1$[\s\S]*^1 faults/m);
      expect(code).toBe(1);
    }
    expect((await check()).code).toBe(0);
  });
});
