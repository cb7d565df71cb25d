import { matchesPattern } from './event-type.ts';
import { OPERATIONAL_EVENTS, type OperationalScope } from './vocabulary.ts';

/**
 * Operational events carry this before their type, and so do subscriptions to them: it stands in no event type and no pattern of a producer.
 * Twice, in a subscription, it means those of every tenant.
 */
const MARK = '~';

/** The rule in words, for error messages. */
export const OPERATIONAL_PATTERN_RULE = `a pattern here is * or matches one of ${OPERATIONAL_EVENTS.join(', ')}: by its name, or by its first part and .*`;

export function isOperational(eventType: string): boolean {
  return eventType.startsWith(MARK);
}

/** Returns null when the pattern can ever match, else the rule it breaks. */
export function validateOperationalPattern(pattern: string): string | null {
  return OPERATIONAL_EVENTS.some((type) => matchesPattern(pattern, type)) ? null : OPERATIONAL_PATTERN_RULE;
}

/** What an endpoint with these patterns subscribes to, as `relay.subscriptions` has it. */
export function operationalSubscriptions(patterns: readonly string[], scope: OperationalScope): string[] {
  const mark = scope === 'all_tenants' ? MARK + MARK : MARK;
  const covered = (pattern: string) =>
    patterns.some((other) => other !== pattern && matchesPattern(other, pattern));
  return [...new Set(patterns)].filter((pattern) => !covered(pattern)).map((pattern) => mark + pattern);
}

/** Whether patterns of operational events match the type of one. */
export function hearsOf(patterns: readonly string[], operationalType: string): boolean {
  return patterns.some((pattern) => matchesPattern(pattern, operationalType.slice(MARK.length)));
}
