import { z } from 'zod';
import { validateOperationalPattern } from '../../../lib/domain/operational-events.ts';
import {
  OPERATIONAL_EVENTS,
  OPERATIONAL_SCOPES,
  type OperationalScope,
} from '../../../lib/domain/vocabulary.ts';
import type { Principal } from '../http/authentication.ts';
import { Problem } from '../http/problem.ts';

const MAX_PATTERNS = 20;

export const operationalEvents = z
  .array(z.string({ error: 'must be text' }), { error: 'must be a list of patterns' })
  .max(MAX_PATTERNS, { error: `must have at most ${MAX_PATTERNS} patterns` })
  .superRefine((patterns, context) => {
    for (const [index, pattern] of patterns.entries()) {
      const rule = validateOperationalPattern(pattern);
      if (rule !== null) context.addIssue({ code: 'custom', path: [index], message: rule });
    }
  })
  .meta({
    description: `What Relay tells this endpoint about itself: patterns over ${OPERATIONAL_EVENTS.map((type) => `\`${type}\``).join(', ')}; none by default.`,
  });

export const operationalScope = z
  .enum(OPERATIONAL_SCOPES, { error: `must be one of ${OPERATIONAL_SCOPES.join(', ')}` })
  .meta({
    description:
      'Whose operational events: those of its own tenant, or of all. Only an admin key may set `all_tenants`, or change an endpoint that has it.',
  });

/** Throws a 403 Problem when an endpoint that hears of all tenants is asked for by a key of one. */
export function requireOperationalScope(scope: OperationalScope | undefined, principal: Principal): void {
  if (scope === 'all_tenants' && principal.tenantId !== null) throw adminOnly();
}

export function adminOnly(): Problem {
  return new Problem(
    'forbidden',
    'only an admin key may make or change an endpoint that hears of all tenants',
  );
}
