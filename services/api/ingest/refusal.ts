import { EXPIRED_RULE } from '../../../lib/domain/delivery-times.ts';
import type { Endpoint } from '../../../lib/store/endpoints.ts';
import { invalid, Problem, tryAgain } from '../http/problem.ts';
import type { AcceptResult } from './member.ts';

/** What an event that was not accepted is told; `no_target` takes a look at its endpoint (see `noTarget`). */
export function refusalOf(result: Exclude<AcceptResult, { kind: 'accepted' | 'no_target' }>): Problem {
  switch (result.kind) {
    case 'conflict':
      return new Problem('idempotency_conflict', 'this idempotency key was used for another request');
    case 'in_progress':
      return tryAgain(
        'idempotency_in_progress',
        'another request with this idempotency key is not finished',
        1,
      );
    case 'too_many_deliveries':
      return new Problem('too_many_deliveries', 'an event may go to 65,535 endpoints at most');
    case 'already_expired':
      return invalid('expires_at', EXPIRED_RULE);
    case 'overloaded':
      return tryAgain('overloaded', 'too many events wait to be stored; nothing was stored of this one', 1);
    case 'commit_unknown':
      return tryAgain('commit_unknown', UNKNOWN_OUTCOME, 1);
    case 'unavailable':
      return tryAgain('database_unavailable', 'the database does not answer; nothing was stored', 2);
    case 'rejected':
      return new Problem('event_refused', result.message);
  }
}

const UNKNOWN_OUTCOME =
  'the connection to the database broke before it said whether the event was stored; with an idempotency key it is safe to send ' +
  'it again, without one it may be stored twice';

/** Why an event could not be addressed to an endpoint, by what that endpoint is now; `field` is what named it. */
export function noTarget(
  endpoint: Pick<Endpoint, 'enabled' | 'disabledReason'> | null,
  field: string,
): Problem {
  if (!endpoint) return new Problem('endpoint_not_found', `there is no endpoint for ${field}`);
  // Enabled again since: the same request would pass now.
  if (endpoint.enabled) return tryAgain('endpoint_disabled', 'the endpoint was disabled a moment ago', 1);
  return new Problem('endpoint_disabled', `the endpoint is disabled (${endpoint.disabledReason})`);
}
