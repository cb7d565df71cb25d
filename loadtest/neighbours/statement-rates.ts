import { round } from '../report.ts';
import { median } from './figures.ts';
import type { Half } from './half.ts';

/** The statements of the delivery path, by how their text begins. */
const STATEMENTS: Readonly<Record<string, RegExp>> = {
  claim: /^with c as \( ?update relay\.queue/,
  finish: /^with freed as/,
  keep: /^with kept as/,
  defer: /^with held as/,
};

/** Calls a second of each, medians over the halves; null when the server does not count statements. */
export function statementRates(
  halves: readonly Pick<Half, 'seconds' | 'postgres'>[],
): Record<string, number> | null {
  if (halves.some(({ postgres }) => !postgres?.statements)) return null;
  const rates = Object.entries(STATEMENTS).map(([name, pattern]) => {
    const perSecond = halves.map((half) => calls(half, pattern) / half.seconds);
    return [name, round(median(perSecond), 1)];
  });
  return Object.fromEntries(rates);
}

function calls({ postgres }: Pick<Half, 'postgres'>, pattern: RegExp): number {
  const own = (postgres?.statements ?? []).filter(({ text }) => pattern.test(text));
  return own.reduce((sum, statement) => sum + statement.calls, 0);
}
