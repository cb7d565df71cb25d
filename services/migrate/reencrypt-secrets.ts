import { parseReencryptConfig } from '../../lib/config/maintenance.ts';
import { runCommand } from '../../lib/runtime/lifecycle.ts';
import { createDatabase } from '../../lib/store/database.ts';
import { createPool } from '../../lib/store/pool.ts';
import { reencryptSecrets } from '../../lib/store/reencrypt-secrets.ts';

const BATCH = 100;

await runCommand('reencrypt-secrets', async () => {
  const { databaseUrl, secretKeys } = parseReencryptConfig(process.env);
  const pool = createPool({
    url: databaseUrl,
    purpose: 'general',
    max: 1,
    applicationName: 'relay-reencrypt-secrets',
  });
  try {
    const written = await reencryptSecrets(createDatabase(pool), secretKeys, { batch: BATCH });
    console.log(
      `${written} endpoints encrypted again under the first key; the other keys are needed no more`,
    );
  } finally {
    await pool.end();
  }
});
