import { describe, expect, it } from 'vitest';
import type { StatementCost } from '../database.ts';
import type { PhasePostgres } from '../report.ts';
import { statementRates } from './statement-rates.ts';

const postgres = (statements: StatementCost[] | null): PhasePostgres => ({
  walBytesPerItem: 0,
  commitsPerItem: 0,
  statements,
});
const cost = (text: string, calls: number): StatementCost => ({ text, calls, rows: calls, totalMs: 1 });

describe('the statements of the delivery path', () => {
  it('are known by how they begin, and counted for each second', () => {
    const half = {
      seconds: 10,
      postgres: postgres([
        cost('with c as ( update relay.queue q set claim_token = $2', 50),
        cost('with c as ( select something else', 1_000),
        cost('with freed as ( delete from relay.queue q', 40),
        cost('with held as materialized ( select id, slot_version', 30),
      ]),
    };
    expect(statementRates([half])).toEqual({ claim: 5, finish: 4, keep: 0, defer: 3 });
  });

  it('are unknown where the server does not count', () => {
    expect(statementRates([{ seconds: 10, postgres: postgres(null) }])).toBeNull();
  });
});
