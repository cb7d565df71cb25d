import { parseDatabaseConfig } from '../../lib/config/maintenance.ts';
import { runCommand } from '../../lib/runtime/lifecycle.ts';
import { checkInvariants, violations } from '../../lib/store/invariants.ts';
import { createPool } from '../../lib/store/pool.ts';

/** `--count` only counts; otherwise what can be repaired is. Exits 1 when a fault was found, so that a drill's script can stop there. */
await runCommand('check-invariants', async () => {
  const { databaseUrl } = parseDatabaseConfig(process.env);
  const repair = !process.argv.includes('--count');
  const pool = createPool({
    url: databaseUrl,
    purpose: 'general',
    max: 1,
    applicationName: 'relay-check-invariants',
  });
  const report = await checkInvariants(pool, { repair }).finally(() => pool.end());
  for (const [name, count] of Object.entries(report)) console.log(`${name}: ${count}`);
  const found = violations(report);
  if (found === 0) return console.log('no fault');
  console.log(repair ? `${found} faults; what can be repaired is repaired` : `${found} faults`);
  process.exit(1);
});
