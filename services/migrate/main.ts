import { parseDatabaseConfig } from '../../lib/config/maintenance.ts';
import { runCommand } from '../../lib/runtime/lifecycle.ts';
import { migrate } from '../../lib/store/migrate.ts';

await runCommand('migrate', async () => {
  const { databaseUrl } = parseDatabaseConfig(process.env);
  const ran = await migrate(databaseUrl);
  console.log(ran.length === 0 ? 'the schema is up to date' : `migrated: ${ran.join(', ')}`);
});
