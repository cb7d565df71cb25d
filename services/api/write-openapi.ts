import { writeFile } from 'node:fs/promises';
import { runCommand } from '../../lib/runtime/lifecycle.ts';
import { OPENAPI_FILE, printOpenApi } from './openapi-file.ts';

await runCommand('write-openapi', async () => {
  await writeFile(OPENAPI_FILE, printOpenApi());
  console.log(`wrote ${OPENAPI_FILE}`);
});
