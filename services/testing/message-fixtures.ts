import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { projectRoot } from '../../lib/local/home.ts';

/** A finished message as a producer posts it, and the event that it becomes: what the API writes and a dispatcher reads. */
export interface MessageFixture {
  name: string;
  message: { kind: 'webhook' | 'email'; idempotencyKey: string } & Record<string, unknown>;
  event: { type: string; contentType: string; payload: string };
}

/** The shared examples, of one kind or of both. */
export function messageFixtures(kind?: MessageFixture['message']['kind']): MessageFixture[] {
  const file = join(projectRoot(), 'lib/domain/fixtures/messages.json');
  const all = JSON.parse(readFileSync(file, 'utf8')) as MessageFixture[];
  return kind === undefined ? all : all.filter(({ message }) => message.kind === kind);
}
