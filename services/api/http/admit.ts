import type { ApiContext } from '../context.ts';
import { type Access, type Principal, requireAccess } from './authentication.ts';

type Doorkeepers = Pick<ApiContext, 'authenticator' | 'keyLimits' | 'keyUsage'>;

/**
 * Who a request comes from, when it may call a route. Throws a 401, 429 or 403 Problem, or whatever the look-up threw. At once when the key is
 * cached: a turn of the microtask queue for each request is not free.
 */
export function admit(
  doorkeepers: Doorkeepers,
  authorization: string | undefined,
  access: Access,
): Principal | Promise<Principal> {
  const principal = doorkeepers.authenticator.authenticate(authorization);
  return principal instanceof Promise
    ? principal.then((known) => judge(doorkeepers, known, access))
    : judge(doorkeepers, principal, access);
}

function judge({ keyLimits, keyUsage }: Doorkeepers, principal: Principal, access: Access): Principal {
  // Before the scope is looked at: what is refused costs something too.
  keyLimits.spend(principal);
  requireAccess(principal, access);
  keyUsage.note(principal.keyId);
  return principal;
}
