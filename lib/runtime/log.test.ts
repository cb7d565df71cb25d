import pg from 'pg';
import { describe, expect, it } from 'vitest';
import { createLineLogger, createLogger, type LogOptions } from './log.ts';

function logged(
  write: (log: ReturnType<typeof createLogger>) => void,
  options: Partial<LogOptions> = {},
): string[] {
  const lines: string[] = [];
  write(
    createLogger({
      service: 'api',
      level: 'info',
      format: 'json',
      write: (line) => lines.push(line),
      ...options,
    }),
  );
  return lines;
}

const parsed = (lines: readonly string[]) => lines.map((line) => JSON.parse(line) as Record<string, unknown>);

describe('a log line', () => {
  it('names its service and its time, one line of JSON each', () => {
    const lines = logged((log) => log.info({ n: 1 }, 'hello'));
    expect(lines).toHaveLength(1);
    expect(lines[0]).toMatch(/\n$/);
    const [line] = parsed(lines);
    expect(line).toMatchObject({ service: 'api', level: 30, n: 1, msg: 'hello' });
    expect(new Date(String(line?.time)).toISOString()).toBe(line?.time);
  });

  it('is written from its level on', () => {
    const lines = logged(
      (log) => {
        log.info('no');
        log.warn('yes');
      },
      { level: 'warn' },
    );
    expect(parsed(lines).map(({ msg }) => msg)).toEqual(['yes']);
  });

  it('is readable when asked for as text', () => {
    const [line] = logged((log) => log.warn({ why: 'because' }, 'hello'), { format: 'text' });
    expect(line).toContain('WARN');
    expect(line).toContain('hello');
    expect(() => JSON.parse(line!)).toThrow();
  });

  it('prints no secret, should one be handed to it', () => {
    const secret = 'whsec_do_not_print';
    const [line] = logged((log) =>
      log.info({ secret, endpoint: { previousSecret: secret }, a: { b: { authorization: secret } } }, 'x'),
    );
    expect(line).not.toContain(secret);
    expect(line).toContain('<redacted>');
  });
});

describe('a logged error', () => {
  function postgresError(): pg.DatabaseError {
    const error = new pg.DatabaseError('duplicate key value', 10, 'error');
    return Object.assign(error, {
      code: '23505',
      detail: 'Key (payload)=(private)',
      where: 'private',
      internalQuery: 'private',
    });
  }

  it('keeps its message, code and place, and nothing that quotes a row', () => {
    for (const make of [createLogger, createLineLogger]) {
      const lines: string[] = [];
      make({ service: 'api', level: 'info', format: 'json', write: (line) => lines.push(line) }).error(
        { err: postgresError() },
        'failed',
      );
      expect(lines[0]).not.toContain('private');
      expect(parsed(lines)[0]?.err).toMatchObject({
        message: 'duplicate key value',
        code: '23505',
        stack: expect.stringContaining('log.test'),
      });
    }
  });

  it('may be anything that can be thrown', () => {
    const lines = logged((log) => {
      for (const err of ['text', 7, { odd: true }]) log.warn({ err }, 'failed');
    });
    expect(parsed(lines).map(({ err }) => err)).toEqual([
      { message: 'text' },
      { message: '7' },
      { message: '[object Object]' },
    ]);
  });
});
