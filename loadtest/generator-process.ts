import { fork } from 'node:child_process';
import { join } from 'node:path';
import { projectRoot } from '../lib/local/home.ts';
import type { GeneratorPlan, GeneratorProgress, GeneratorResult } from './generator.ts';

export type ToGenerator =
  | {
      kind: 'run';
      plan: GeneratorPlan;
      /** Where the accepted events are written when the run is over. */
      acceptedFile: string;
    }
  | { kind: 'enough' };

export type FromGenerator =
  | { kind: 'progress'; progress: GeneratorProgress }
  | { kind: 'done'; result: GeneratorResult }
  | { kind: 'written' };

export interface RunningGenerator {
  readonly pid: number;
  /** As told a quarter of a second ago at most. */
  progress(): GeneratorProgress;
  /** The moment of the last answer. Rejects when the process ends before. */
  done(): Promise<GeneratorResult>;
  /** Tells it to send nothing more; `done` follows when what was sent is answered. */
  enough(): void;
  /** Ends the process once the accepted events are in their file. */
  finish(): Promise<void>;
  /** Ends it at once. */
  stop(): void;
}

/**
 * Runs a plan in a process of its own: sharing one with anything else would make its pauses look like the API's. The process
 * stays until `finish`, so that its CPU can be read after the run.
 */
export function startGenerator(
  work: Pick<Extract<ToGenerator, { kind: 'run' }>, 'plan' | 'acceptedFile'>,
): RunningGenerator {
  const child = fork(join(projectRoot(), 'dist', 'loadtest', 'generator-main.js'), {
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  });
  let progress: GeneratorProgress = { sent: 0, accepted: 0, refused: 0, unknown: 0, behind: 0 };
  const ended = new Promise<never>((_, reject) => {
    child.once('error', reject);
    child.once('exit', (code, signal) => reject(new Error(`the generator ended early (${signal ?? code})`)));
  });
  const done = new Promise<GeneratorResult>((resolve) => {
    child.on('message', (news: FromGenerator) => {
      if (news.kind === 'progress') progress = news.progress;
      if (news.kind !== 'done') return;
      progress = news.result;
      resolve(news.result);
    });
  });
  const written = new Promise<void>((resolve) => {
    child.on('message', (news: FromGenerator) => {
      if (news.kind === 'written') resolve();
    });
  });
  // Whoever waits for the run hears of a failure; until somebody does, it is no unhandled rejection.
  ended.catch(() => undefined);
  const tell = (message: ToGenerator) => child.send(message);
  tell({ kind: 'run', ...work });
  return {
    pid: child.pid!,
    progress: () => progress,
    done: () => Promise.race([done, ended]),
    enough: () => void tell({ kind: 'enough' }),
    async finish() {
      await Promise.race([written, ended]);
      child.kill('SIGKILL');
    },
    stop: () => child.kill('SIGKILL'),
  };
}
