import { describe, expect, it } from 'vitest';
import { parseOptions, UsageError } from './options.ts';

describe('the command line', () => {
  it('has defaults for each mode', () => {
    expect(parseOptions(['sustained'])).toMatchObject({
      mode: 'sustained',
      rate: 5000,
      seconds: 60,
      endpoints: 1,
      target: { kind: 'private', apis: 1, dispatchers: 1, redis: true },
    });
    expect(parseOptions(['drain'])).toMatchObject({ mode: 'drain', events: 60_000 });
    expect(parseOptions(['ingest', '--loop', 'open'])).toMatchObject({ rate: 8000, loops: ['open'] });
  });

  it('passes settings on as given', () => {
    const options = parseOptions(['drain', '--env', 'A=b=c', '--env', 'D=', '--pg', 'jit=on', '--no-redis']);
    expect(options?.target).toMatchObject({
      env: { A: 'b=c', D: '' },
      postgresSettings: { jit: 'on' },
      redis: false,
    });
  });

  it('takes a fleet that runs already', () => {
    const fleet = [
      '--api',
      'http://127.0.0.1:1,http://127.0.0.1:2/',
      '--key',
      'k',
      '--receiver',
      'http://r:9/',
    ];
    expect(parseOptions(['sustained', ...fleet])?.target).toEqual({
      kind: 'running',
      apis: ['http://127.0.0.1:1', 'http://127.0.0.1:2'],
      key: 'k',
      receiver: 'http://r:9',
      database: null,
    });
  });

  it('posts batches in one more loop when it is told their size', () => {
    expect(parseOptions(['ingest'])?.batch).toBeNull();
    expect(parseOptions(['ingest', '--loop', 'closed', '--batch', '500'])).toMatchObject({
      loops: ['closed'],
      batch: 500,
    });
  });

  it('has defaults of its own for neighbours', () => {
    expect(parseOptions(['neighbours'])).toMatchObject({
      rate: 100,
      seconds: 20,
      endpoints: 20,
      target: { dispatchers: 2, reconcilers: 1 },
      neighbours: {
        scenarios: ['dead', 'hang', 'trickle', 'flood', 'flap', 'slow50', 'held-key'],
        pairs: 5,
        backlog: null,
        bad: { ratePerSecond: 10, burst: 20, maxInFlight: 8, batch: 100 },
      },
    });
    expect(parseOptions(['sustained'])?.neighbours).toBeNull();
  });

  it('picks scenarios, and has a second reconciler where the leader is to go', () => {
    const options = parseOptions([
      'neighbours',
      '--scenario',
      'hang,dead',
      '--scenario',
      'flood',
      '--healthy-rate',
      '50',
      '--bad-rate',
      '0.5',
      '--change-leader-at',
      '5',
    ]);
    expect(options).toMatchObject({
      rate: 50,
      target: { reconcilers: 2 },
      neighbours: {
        scenarios: ['dead', 'hang', 'flood'],
        bad: { ratePerSecond: 0.5 },
        changeLeaderAtSeconds: 5,
        restartPostgresAtSeconds: null,
      },
    });
  });

  it('is asked for help', () => {
    expect(parseOptions(['--help'])).toBeNull();
  });

  it.each([
    [[]],
    [['both']],
    [['drain', 'sustained']],
    [['drain', '--events', '0']],
    [['drain', '--events', '1e3']],
    [['sustained', '--rate', '0']],
    [['sustained', '--unheard-of']],
    [['sustained', '--env', 'NOVALUE']],
    [['ingest', '--loop', 'neither']],
    [['ingest', '--batch', '0']],
    [['ingest', '--batch', '1001']],
    [['sustained', '--batch', '100']],
    [['drain', '--profile', 'postgres']],
    [['neighbours', '--scenario', 'nice']],
    [['neighbours', '--pairs', '0']],
    [['neighbours', '--bad-rate', '0']],
    [['neighbours', '--seconds', '10', '--restart-postgres-at', '10']],
    [['neighbours', '--api', 'http://127.0.0.1:1', '--key', 'k', '--receiver', 'http://r:9']],
    [['sustained', '--api', 'http://127.0.0.1:1']],
    [['sustained', '--api', 'https://127.0.0.1:1', '--key', 'k', '--receiver', 'http://r:9']],
    [['drain', '--api', 'http://127.0.0.1:1', '--key', 'k', '--receiver', 'http://r:9']],
  ])('refuses %j', (args) => {
    expect(() => parseOptions(args)).toThrow(UsageError);
  });
});
