import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { pathToFileURL } from 'node:url';
import { describe, expect, it } from 'vitest';
import { projectRoot } from '../local/home.ts';

const BUILT = pathToFileURL(`${projectRoot()}/dist/lib/runtime/lifecycle.js`).href;

interface Service {
  child: ChildProcess;
  said: () => string;
  complained: () => string;
  exit: Promise<[number | null, NodeJS.Signals | null]>;
}

/** A process of its own that runs `body` as its service. */
function givenProcess(body: string, run = 'runService'): Service {
  const script = `import { ${run} } from '${BUILT}';
    const idle = setInterval(() => {}, 1000);
    await ${run}('api', async () => { ${body} });`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', script], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const texts = { out: '', err: '' };
  child.stdout.on('data', (chunk) => {
    texts.out += chunk;
  });
  child.stderr.on('data', (chunk) => {
    texts.err += chunk;
  });
  return {
    child,
    said: () => texts.out,
    complained: () => texts.err,
    exit: once(child, 'close') as Service['exit'],
  };
}

async function started({ said }: Service): Promise<void> {
  await expect.poll(said, { timeout: 10_000 }).toContain('started');
}

describe('a service', () => {
  it.each(['SIGTERM', 'SIGINT'] as const)('stops at %s and exits 0', async (signal) => {
    const service = givenProcess(
      `console.log('started'); return { async stop() { console.log('stopped'); } };`,
    );
    await started(service);
    service.child.kill(signal);
    expect(await service.exit).toEqual([0, null]);
    expect(service.said()).toContain('stopped');
  });

  it('that is told during its start stops once it has started', async () => {
    const service = givenProcess(`console.log('started'); await new Promise((go) => setTimeout(go, 300));
      return { async stop() { console.log('stopped'); } };`);
    await started(service);
    service.child.kill('SIGTERM');
    expect(await service.exit).toEqual([0, null]);
    expect(service.said()).toContain('stopped');
  });

  it('that hangs in its stop exits at once, with 1, at a second signal', async () => {
    const service = givenProcess(
      `console.log('started'); return { stop() { console.log('stopping'); return new Promise(() => {}); } };`,
    );
    await started(service);
    service.child.kill('SIGTERM');
    await expect.poll(service.said).toContain('stopping');
    // The same Ctrl-C may arrive twice within 0.3 s, so a second one is repeated until it counts.
    const again = setInterval(() => service.child.kill('SIGTERM'), 100);
    expect(await service.exit).toEqual([1, null]);
    clearInterval(again);
  });

  it('that cannot start for a reason that a person can mend says it in a sentence, and exits 1', async () => {
    const service = givenProcess(
      `throw Object.assign(new Error('PORT: must be a number'), { name: 'ConfigurationError' });`,
    );
    expect(await service.exit).toEqual([1, null]);
    expect(service.complained()).toBe('api: PORT: must be a number\n');
  });

  it('that cannot start for any other reason says where', async () => {
    const service = givenProcess(`throw new TypeError('a bug');`);
    expect(await service.exit).toEqual([1, null]);
    expect(service.complained()).toMatch(/^api: TypeError: a bug\n\s+at /);
  });
});

describe('a command', () => {
  it('exits 0 when it is done', async () => {
    const command = givenProcess(`console.log('done');`, 'runCommand');
    expect(await command.exit).toEqual([0, null]);
    expect(command.said()).toBe('done\n');
  });

  it('exits 1 with a sentence when it fails', async () => {
    const command = givenProcess(
      `throw Object.assign(new Error('connect ECONNREFUSED 127.0.0.1:1'), { code: 'ECONNREFUSED' });`,
      'runCommand',
    );
    expect(await command.exit).toEqual([1, null]);
    expect(command.complained()).toBe('api: connect ECONNREFUSED 127.0.0.1:1\n');
  });
});
