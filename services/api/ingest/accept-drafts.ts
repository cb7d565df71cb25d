import { type EventTarget, findEmailEndpoints, readTargets } from '../../../lib/store/event-targets.ts';
import type { ApiContext } from '../context.ts';
import { Problem } from '../http/problem.ts';
import type { AcceptResult } from './acceptor.ts';
import type { Draft } from './drafts.ts';
import { noTarget, refusalOf } from './refusal.ts';

export type Accepted = Extract<AcceptResult, { kind: 'accepted' }>;

type AcceptContext = Pick<ApiContext, 'acceptor' | 'db'>;

/**
 * Has drafts of one tenant accepted, together; what is a Problem already stays one. Results stand in the order of the drafts. Throws what the
 * database throws while endpoints are looked up, before anything was stored.
 */
export async function acceptDrafts(
  context: AcceptContext,
  tenantId: string,
  drafts: readonly (Draft | Problem)[],
): Promise<(Accepted | Problem)[]> {
  const addressed = await addressEmails(context, tenantId, drafts);
  const wellFormed = addressed.filter(isDraft);
  const results = await context.acceptor.acceptAll(wellFormed.map((draft) => draft.request));
  const targets = await targetsOfRefused(context, tenantId, wellFormed, results);
  let next = 0;
  return addressed.map((draft) => {
    if (draft instanceof Problem) return draft;
    const result = results[next]!;
    next += 1;
    if (result.kind === 'accepted') return result;
    if (result.kind !== 'no_target') return refusalOf(result);
    return noTarget(targets.get(draft.request.targetEndpointId ?? '') ?? null, draft.targetField);
  });
}

/** Finds the endpoint of each email message that names none, and sees to it that the others name an email endpoint. */
async function addressEmails(
  { db }: AcceptContext,
  tenantId: string,
  drafts: readonly (Draft | Problem)[],
): Promise<readonly (Draft | Problem)[]> {
  const emails = drafts.filter(isDraft).filter((draft) => draft.byEmail);
  if (emails.length === 0) return drafts;
  const named = emails.flatMap(({ request }) => request.targetEndpointId ?? []);
  const targets = named.length > 0 ? await readTargets(db, tenantId, [...new Set(named)]) : new Map();
  const usual = named.length < emails.length ? await findEmailEndpoints(db, tenantId) : [];
  return drafts.map((draft) => {
    if (draft instanceof Problem || !draft.byEmail) return draft;
    return addressEmail(draft, targets, usual);
  });
}

function isDraft(draft: Draft | Problem): draft is Draft {
  return !(draft instanceof Problem);
}

function addressEmail(
  draft: Draft,
  targets: ReadonlyMap<string, EventTarget>,
  usual: readonly string[],
): Draft | Problem {
  const { targetEndpointId } = draft.request;
  if (targetEndpointId !== null) {
    const target = targets.get(targetEndpointId);
    // One that does not exist is told as any other target that does not.
    return target === undefined || target.transport === 'email'
      ? draft
      : noEmailEndpoint('endpointId: is not an endpoint for email');
  }
  const [only, another] = usual;
  if (only === undefined) return noEmailEndpoint('the tenant has no endpoint for email that is enabled');
  if (another !== undefined)
    return noEmailEndpoint('the tenant has several endpoints for email: name one in endpointId');
  return { ...draft, request: { ...draft.request, targetEndpointId: only } };
}

function noEmailEndpoint(detail: string): Problem {
  return new Problem('no_email_endpoint', detail, { errors: [{ field: 'endpointId', rule: detail }] });
}

/** What became of the endpoints to which events could not be addressed. */
async function targetsOfRefused(
  { db }: AcceptContext,
  tenantId: string,
  drafts: readonly Draft[],
  results: readonly AcceptResult[],
): Promise<ReadonlyMap<string, EventTarget>> {
  const refused = drafts.filter((_, place) => results[place]?.kind === 'no_target');
  const ids = new Set(refused.flatMap(({ request }) => request.targetEndpointId ?? []));
  return ids.size > 0 ? readTargets(db, tenantId, [...ids]) : new Map();
}
