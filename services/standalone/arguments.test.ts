import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { parseStandaloneConfig, withStandaloneDefaults } from '../../lib/config/standalone.ts';
import { projectRoot } from '../../lib/local/home.ts';
import { HELP, parseArguments } from './arguments.ts';

describe('the arguments of npm start', () => {
  it('run the demo unless told otherwise', () => {
    expect(parseArguments([])).toEqual({ help: false, demo: true });
    expect(parseArguments(['--no-demo'])).toEqual({ help: false, demo: false });
    expect(parseArguments(['--help']).help).toBe(true);
  });

  it.each([['--nodemo'], ['demo'], ['--no-demo=1']])('refuse %s, naming it', (argument) => {
    expect(() => parseArguments([argument])).toThrow(argument.split('=')[0]!);
  });
});

describe('the help', () => {
  it('names every setting that npm start reads itself, and the defaults that it has', () => {
    const source = readFileSync(join(projectRoot(), 'lib', 'config', 'standalone.ts'), 'utf8');
    const names = new Set(source.match(/\b(RELAY_[A-Z_]+|DATABASE_URL)\b/g));
    expect(names.size).toBeGreaterThan(8);
    expect([...names].filter((name) => !HELP.includes(name))).toEqual([]);
    const { apiBind, metricsBind, receiverBind, logLevel } = parseStandaloneConfig(
      withStandaloneDefaults({}),
    );
    for (const { host, port } of [apiBind, metricsBind, receiverBind])
      expect(HELP).toContain(`(${host}:${port})`);
    expect(HELP).toContain(`(${logLevel})`);
  });
});

describe('the environment of npm start', () => {
  it('counts what is empty as not said', () => {
    expect(withStandaloneDefaults({ RELAY_LOG_LEVEL: '', RELAY_API_BIND: '127.0.0.1:1' })).toMatchObject({
      RELAY_LOG_LEVEL: 'warn',
      RELAY_API_BIND: '127.0.0.1:1',
    });
  });

  it.each([
    [{ RELAY_API_BIND: 'nowhere' }, /RELAY_API_BIND/],
    [{ RELAY_SECRET_KEYS: 'short' }, /RELAY_SECRET_KEYS/],
    [{ RELAY_BROKER_URL: 'http://redis' }, /RELAY_BROKER_URL/],
  ])('refuses %j, naming the setting', (env, message) => {
    expect(() => parseStandaloneConfig(withStandaloneDefaults(env))).toThrow(message);
  });
});
