import { at, type DeliveryFacts, inWords } from './explain-facts.ts';
import { type GateReason, gateOf, NOT_QUEUED } from './explain-gates.ts';
import { MAX_RECLAIMS } from './limits.ts';
import type { DeadReason } from './vocabulary.ts';

export interface Explanation {
  /** Null when nothing is owed. */
  gate: { reason: GateReason; detail: string } | null;
  /** One or two sentences. */
  summary: string;
}

/** Why a delivery has not arrived, or how it ended, in words. Times are RFC 3339 in UTC, on the database's clock. */
export function explainDelivery(facts: DeliveryFacts): Explanation {
  const { status, owed } = facts;
  if (status === 'succeeded' || status === 'dead') return { gate: null, summary: ending(facts) };
  const { reason, detail, outlook } = owed ? gateOf(facts, owed) : NOT_QUEUED;
  return { gate: { reason, detail }, summary: `${detail} ${outlook}` };
}

function ending(facts: DeliveryFacts): string {
  const { status, deadReason, finishedAt, attempts, last, endpoint } = facts;
  if (status === 'succeeded') {
    return `It arrived at ${at(finishedAt)} with attempt ${attempts}${last ? `: ${inWords(last)}` : ''}.`;
  }
  const replay =
    endpoint && !endpoint.deleted
      ? 'A replay sends it again.'
      : 'Its endpoint is deleted, so it cannot be replayed.';
  return `It ended dead at ${at(finishedAt)}: ${deathInWords(deadReason, facts)}. ${replay}`;
}

function deathInWords(reason: DeadReason | null, { attempts, last }: DeliveryFacts): string {
  const lastly = last ? inWords(last) : 'no answer';
  switch (reason) {
    case 'permanent_failure':
      return last?.httpStatus == null
        ? `it cannot be sent (${lastly})`
        : `its endpoint refused it for good (${lastly})`;
    case 'attempts_exhausted':
      return `all ${attempts} attempts failed, the last with ${lastly}`;
    case 'refused':
      return 'Relay may not send to its destination, or its event or endpoint was missing';
    case 'gone':
      return 'its endpoint answered that it is gone (HTTP 410)';
    case 'abandoned':
      return `the processes that held it vanished ${MAX_RECLAIMS} times in a row`;
    case 'cancelled':
      return 'it was cancelled, or its endpoint was deleted, before it arrived';
    case 'expired':
      return 'its event expired before it arrived';
    case null:
      return 'no reason was recorded';
  }
}
