import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, posix, relative } from 'node:path';
import { describe, expect, it } from 'vitest';
import { projectRoot } from './local/home.ts';

/** From the ground up. A module imports from floors below its own and from its own room; across a floor it may import types only. */
const FLOORS: readonly (readonly string[])[] = [
  ['lib/domain'],
  ['lib/config', 'lib/metrics', 'lib/runtime', 'lib/local'],
  ['lib/store', 'lib/broker'],
  ['services/fleet'],
  ['services/api', 'services/dispatcher', 'services/reconciler', 'services/receiver', 'services/migrate'],
  ['services/standalone'],
  ['loadtest'],
];

interface Import {
  /** `type` when nothing of it is left when the program runs. */
  kind: 'type' | 'value';
  from: string;
}

interface Module {
  path: string;
  text: string;
  imports: Import[];
}

const root = projectRoot();

function sources(folder: string): Module[] {
  return readdirSync(join(root, folder), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && /\.m?ts$|\.mjs$/.test(entry.name) && !entry.name.endsWith('.d.mts'))
    .map((entry) => {
      const path = relative(root, join(entry.parentPath, entry.name)).replaceAll('\\', '/');
      const text = readFileSync(join(root, path), 'utf8');
      return { path, text, imports: importsOf(path, text) };
    });
}

function importsOf(path: string, text: string): Import[] {
  const statements = text.matchAll(/^(import|export)\s+(type\s)?([^;'"]*?from\s*)?['"]([^'"]+)['"]/gm);
  const found = [...statements].map(([, , type, names, from]): Import => {
    const all = /\{([^}]*)\}/
      .exec(names ?? '')?.[1]
      ?.split(',')
      .filter((name) => name.trim() !== '') ?? [''];
    const onlyTypes = type !== undefined || all.every((name) => name.trim().startsWith('type '));
    return { kind: onlyTypes ? 'type' : 'value', from: resolve(path, from!) };
  });
  const dynamic = [...text.matchAll(/\bimport\(\s*['"]([^'"]+)['"]/g)].map(
    ([, from]): Import => ({ kind: 'value', from: resolve(path, from!) }),
  );
  return [...found, ...dynamic];
}

function resolve(path: string, from: string): string {
  return from.startsWith('.') ? posix.normalize(posix.join(dirname(path), from)) : from;
}

const isTest = ({ path }: Module) =>
  path.endsWith('.test.ts') ||
  path.startsWith('services/testing/') ||
  path.startsWith('services/scenarios/') ||
  path.includes('/fixtures/');
const modules = [...sources('lib'), ...sources('services'), ...sources('loadtest')];
const program = modules.filter((module) => !isTest(module));

function roomOf(path: string): { floor: number; room: string } | null {
  for (const [floor, rooms] of FLOORS.entries()) {
    const room = rooms.find((name) => path.startsWith(`${name}/`));
    if (room) return { floor, room };
  }
  return null;
}

function trespasses(module: Module): string[] {
  const own = roomOf(module.path);
  if (!own) return [`${module.path} stands on no floor`];
  return module.imports.flatMap(({ kind, from }) => {
    const other = roomOf(from);
    if (!other || other.room === own.room || other.floor < own.floor) return [];
    return other.floor === own.floor && kind === 'type' ? [] : [`${module.path} imports ${from}`];
  });
}

const importers = (where: readonly Module[], what: (from: string) => boolean) =>
  where
    .filter(({ imports }) => imports.some(({ kind, from }) => kind === 'value' && what(from)))
    .map(({ path }) => path);

describe('the house', () => {
  it('has modules, and this test can read their imports', () => {
    expect(program.length).toBeGreaterThan(80);
    const claims = modules.find(({ path }) => path === 'lib/store/claims.ts');
    expect(claims?.imports).toEqual(
      expect.arrayContaining([
        { kind: 'type', from: 'pg' },
        { kind: 'value', from: 'lib/domain/limits.ts' },
      ]),
    );
  });

  it('imports point down, never up and never across', () => {
    expect(program.flatMap(trespasses)).toEqual([]);
  });

  it('the program does not lean on its tests', () => {
    expect(
      importers(
        program,
        (from) => from.startsWith('services/testing/') || from.endsWith('.test.ts') || from === 'vitest',
      ),
    ).toEqual([]);
  });
});

describe('the ground floor', () => {
  const domain = program.filter(({ path }) => path.startsWith('lib/domain/'));

  it('imports nothing that reaches the world', () => {
    const pure = new Set(['node:crypto', 'node:net', 'node:buffer', 'node:util', 'ipaddr.js']);
    expect(importers(domain, (from) => !from.startsWith('lib/domain/') && !pure.has(from))).toEqual([]);
  });

  it('has neither clock nor chance', () => {
    const impure =
      /\bDate\.now\(|\bnew Date\(\)|\bperformance\.|Math\.random|\brandom(Bytes|UUID|Int)\b|\bset(Timeout|Interval|Immediate)\(|\bprocess\./;
    expect(domain.filter(({ text }) => impure.test(text)).map(({ path }) => path)).toEqual([]);
  });
});

describe('what only one place may do', () => {
  it('SQL lives in the store', () => {
    const sql = /\b(select|insert into|update|delete from|truncate)\s[^`]*\brelay\.[a-z_]+/;
    const outside = program.filter(
      ({ path }) => !path.startsWith('lib/store/') && !path.startsWith('loadtest/'),
    );
    expect(outside.filter(({ text }) => sql.test(text)).map(({ path }) => path)).toEqual([]);
    expect(
      importers(outside, (from) => from === 'pg' || from === 'kysely').filter(
        (path) => !path.startsWith('lib/local/'),
      ),
    ).toEqual([]);
  });

  it('Redis is spoken to by the broker', () => {
    const outside = program.filter(
      ({ path }) => !path.startsWith('lib/broker/') && !path.startsWith('lib/local/'),
    );
    expect(importers(outside, (from) => from === 'ioredis')).toEqual([]);
  });

  it('the environment is read where a process begins', () => {
    const mayRead = (path: string) =>
      /^(services\/[a-z]+\/main\.ts|services\/migrate\/[a-z-]+\.ts|loadtest\/main\.ts|services\/standalone\/prepare\.mjs|services\/testing\/.*)$/.test(
        path,
      );
    const reads = modules.filter(
      ({ path, text }) => !path.endsWith('.test.ts') && /\bprocess\.env\b/.test(text),
    );
    expect(reads.map(({ path }) => path).filter((path) => !mayRead(path))).toEqual([]);
  });
});
