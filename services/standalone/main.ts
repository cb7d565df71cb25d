import { runService } from '../../lib/runtime/lifecycle.ts';
import { HELP, parseArguments } from './arguments.ts';
import { Screen } from './screen.ts';
import { startStandalone } from './standalone.ts';

await runService('relay', async () => {
  const { help, demo } = parseArguments(process.argv.slice(2));
  if (help) {
    process.stdout.write(HELP);
    process.exit(0);
  }
  // Whoever read the summary may have gone (`npm start | head`); Relay goes on.
  process.stdout.on('error', () => undefined);
  return startStandalone(process.env, { demo, screen: new Screen(process.stdout) });
});
