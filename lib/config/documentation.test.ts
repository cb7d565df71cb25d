import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { parseApiConfig } from './api.ts';
import { parseDispatcherConfig } from './dispatcher.ts';
import type { Env } from './env.ts';
import { parseReencryptConfig } from './maintenance.ts';
import { parseReceiverConfig } from './receiver.ts';
import { parseReconcilerConfig } from './reconciler.ts';

const here = new URL('.', import.meta.url);
const page = readFileSync(new URL('../../docs/configuration.md', here), 'utf8');
const SETTING = /\b(?:RELAY_[A-Z0-9]+(?:_[A-Z0-9]+)*|DATABASE_URL)\b(?!_)/g;

const PARSERS: Record<string, (env: Env) => unknown> = {
  api: parseApiConfig,
  dispatcher: parseDispatcherConfig,
  reconciler: parseReconcilerConfig,
  receiver: parseReceiverConfig,
  commands: parseReencryptConfig,
};

const REQUIRED: Env = {
  DATABASE_URL: 'postgres://relay@127.0.0.1/relay',
  RELAY_SECRET_KEYS: Buffer.alloc(32, 7).toString('base64'),
};

interface Row {
  name: string;
  /** Null: required, unset or told in words. */
  defaultValue: string | null;
  required: boolean;
  range: string;
  readBy: string[];
}

function readRow(line: string): Row | null {
  const cells = line.split(/(?<!\\)\|/).map((cell) => cell.trim());
  const [, name = '', given = '', , range = '', readBy = ''] = cells;
  if (cells.length !== 8 || !/^`[A-Z_]+`$/.test(name)) return null;
  const literal = /^`(.*)`$/.exec(given)?.[1] ?? null;
  return {
    name: name.slice(1, -1),
    defaultValue: literal,
    required: given === 'required',
    range,
    readBy: readBy.split(', '),
  };
}

const rows = page.split('\n').flatMap((line) => readRow(line) ?? []);
const readings = rows.flatMap((row) => row.readBy.map((process) => ({ ...row, process })));

function namesInSources(): Set<string> {
  const files = readdirSync(here).filter((file) => file.endsWith('.ts') && !file.endsWith('.test.ts'));
  return new Set(files.flatMap((file) => readFileSync(new URL(file, here), 'utf8').match(SETTING) ?? []));
}

describe('the page on configuration', () => {
  it('has a row for every setting that is read, and names no other', () => {
    const read = [...namesInSources()].sort();
    const tabled = page.split('\n').flatMap((line) => /^\| `([A-Z_]+)` \|/.exec(line)?.[1] ?? []);
    expect([...new Set(tabled)].sort()).toEqual(read);
    expect([...new Set(page.match(SETTING))].sort()).toEqual(read);
  });

  it.each(readings.filter((row) => row.defaultValue !== null))(
    'tells the default of $name for $process',
    ({ name, defaultValue, process }) => {
      const parse = PARSERS[process]!;
      expect(parse({ ...REQUIRED, [name]: defaultValue! })).toEqual(parse(REQUIRED));
    },
  );

  it.each(readings.filter((row) => row.range !== ''))(
    'tells the range of $name for $process',
    ({ name, range, process }) => {
      const [min, max] = range.split('–');
      const beyond = { ...REQUIRED, [name]: '99999999999' };
      expect(() => PARSERS[process]!(beyond)).toThrow(`${name}: must lie between ${min} and ${max}`);
    },
  );

  it.each(readings.filter((row) => row.required && row.process !== 'reconciler'))(
    'tells that $name is required by $process',
    ({ name, process }) => {
      expect(() => PARSERS[process]!({ ...REQUIRED, [name]: '' })).toThrow(`${name}: is required`);
    },
  );
});
