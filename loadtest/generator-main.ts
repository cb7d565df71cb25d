import { once } from 'node:events';
import { createWriteStream } from 'node:fs';
import { type AcceptedEvent, Generator } from './generator.ts';
import type { FromGenerator, ToGenerator } from './generator-process.ts';

// The generator's process: it is told its plan over IPC and ends when its parent is gone. Ctrl-C reaches the whole terminal
// group; the parent decides what it means.
const PROGRESS_MS = 250;

process.on('SIGINT', () => undefined);
process.on('disconnect', () => process.exit(1));
let generator: Generator | null = null;
process.on('message', (message: ToGenerator) => {
  if (message.kind === 'enough') return generator?.enough();
  generator = new Generator(message.plan);
  run(generator, message.acceptedFile).catch((error: unknown) => {
    console.error(error);
    process.exit(1);
  });
});

async function run(generator: Generator, acceptedFile: string): Promise<void> {
  const progress = setInterval(() => tell({ kind: 'progress', progress: generator.progress() }), PROGRESS_MS);
  const result = await generator.run();
  clearInterval(progress);
  generator.close();
  tell({ kind: 'done', result });
  await writeAccepted(acceptedFile, generator.accepted);
  tell({ kind: 'written' });
}

function tell(message: FromGenerator): void {
  process.send?.(message);
}

/** A line each, `<intended ms> <body of the answer>`. */
async function writeAccepted(file: string, accepted: readonly AcceptedEvent[]): Promise<void> {
  const stream = createWriteStream(file, { highWaterMark: 1 << 20 });
  for (const { intendedMs, answer } of accepted) {
    if (!stream.write(`${intendedMs} ${answer}\n`)) await once(stream, 'drain');
  }
  stream.end();
  await once(stream, 'close');
}
