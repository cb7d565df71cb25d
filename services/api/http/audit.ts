import type { AuditActor } from '../../../lib/domain/vocabulary.ts';
import { type NewAuditEntry, recordAudit } from '../../../lib/store/audit.ts';
import type { Principal } from './authentication.ts';
import { redacted } from './redact.ts';
import type { Call, Handler, Reply, RouteFacts } from './route.ts';

type AnyCall = Call<unknown, unknown, unknown>;

/** Every route that changes something; posting events is what Relay is for, and the events themselves are the record of it. */
export function isAudited({ method, access }: Pick<RouteFacts, 'method' | 'access'>): boolean {
  return method !== 'get' && access !== 'open' && access !== 'events:write';
}

/**
 * Runs a handler and writes down what it did, in one transaction: neither is there without the other. The handler finds that transaction in its
 * context's `db` and `pool`. A Problem that it throws undoes what it did until then, and is not written down.
 */
export async function audited(
  route: RouteFacts,
  handle: Handler,
  call: AnyCall,
  requestId: string,
): Promise<Reply> {
  if (route.commitsItself) return auditedAfter(route, await handle(call), call, requestId);
  return call.context.transact(async (bound) => {
    const reply = await handle({ ...call, context: { ...call.context, ...bound } });
    await recordAudit(bound.db, entryOf(route, call, reply, requestId));
    return reply;
  });
}

/** What is committed has happened: that its entry could not be written is said in the log, not to whoever asked. */
async function auditedAfter(
  route: RouteFacts,
  reply: Reply,
  call: AnyCall,
  requestId: string,
): Promise<Reply> {
  const entry = entryOf(route, call, reply, requestId);
  try {
    await recordAudit(call.context.db, entry);
  } catch (err) {
    call.context.log.error({ err, entry }, 'an entry of the audit log could not be written');
  }
  return reply;
}

function entryOf(route: RouteFacts, call: AnyCall, reply: Reply, requestId: string): NewAuditEntry {
  const note = reply.audit ?? {};
  return {
    tenantId: note.tenantId === undefined ? call.tenantId : note.tenantId,
    ...actorOf(call.principal),
    action: route.name,
    resource: resourceOf(route.path),
    resourceId: note.resourceId === undefined ? resourceIdOf(call, reply) : note.resourceId,
    changes: redacted({ ...(call.query as object), ...(call.body as object), ...note.changes }),
    requestId,
  };
}

function actorOf({ keyId, portalTokenId }: Principal): { actor: AuditActor; actorId: string | null } {
  if (keyId !== null) return { actor: 'key', actorId: keyId };
  return portalTokenId !== null
    ? { actor: 'portal', actorId: portalTokenId }
    : { actor: 'admin', actorId: null };
}

/** What a route is about: `/v1/portal-tokens/{id}` is about a portal token. */
export function resourceOf(path: string): string {
  const [, , collection = ''] = path.split('/');
  return RESOURCES[collection] ?? collection;
}

const RESOURCES: Readonly<Record<string, string>> = {
  tenants: 'tenant',
  keys: 'key',
  'portal-tokens': 'portal_token',
  endpoints: 'endpoint',
  events: 'event',
  deliveries: 'delivery',
  dlq: 'dead_letter',
  replays: 'replay',
};

/** The one that the path names, else the one that was made. */
function resourceIdOf(call: AnyCall, reply: Reply): string | null {
  const named = (call.params as { id?: string }).id;
  if (named !== undefined) return named;
  const made = 'json' in reply ? (reply.json as { id?: unknown }).id : undefined;
  return typeof made === 'string' ? made : null;
}
