import { describe, expect, it } from 'vitest';
import { sumOf } from './figures.ts';

const TEXT = `# HELP relay_deliveries_dead_total Deliveries that ended without success, by reason.
# TYPE relay_deliveries_dead_total counter
relay_deliveries_dead_total{reason="gone"} 2
relay_deliveries_dead_total{reason="refused"} 3
relay_deliveries_dead_total_more{reason="refused"} 100
relay_read_ahead 7
`;

describe('the sum of a metric', () => {
  it('is that of all its labels, or of those asked for', () => {
    const sum = sumOf(TEXT);
    expect(sum('relay_deliveries_dead_total')).toBe(5);
    expect(sum('relay_deliveries_dead_total', 'reason="gone"')).toBe(2);
    expect(sum('relay_read_ahead')).toBe(7);
  });

  it('is nothing for a metric that is not there', () => {
    expect(sumOf(TEXT)('relay_deliveries')).toBe(0);
  });
});
