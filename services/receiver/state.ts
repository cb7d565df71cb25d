import assert from 'node:assert/strict';
import type { BehaviourContext } from './behaviours.ts';
import { createLedger, type Ledger, type LedgerSummary } from './ledger.ts';
import { type VerificationKey, verificationKey, verifySignature } from './signatures.ts';
import { createTargets, type Targets } from './target.ts';

const TOLERANCE_SECONDS = 300;

export interface VerdictCounters {
  verified: number;
  rejected: number;
  /** Requests that named no delivery, so that no ledger row counts them. */
  unidentified: number;
}

export type ReceiverCounts = LedgerSummary & VerdictCounters;

/** What the routes share. Everything but the secrets is forgotten by `reset`. */
export interface ReceiverState extends BehaviourContext {
  /** First part of the names of Relay's own headers, lower case. */
  readonly headerPrefix: string;
  readonly ledger: Ledger;
  readonly targets: Targets;
  readonly counters: VerdictCounters;
  counts(): ReceiverCounts;
  setSecrets(secrets: readonly string[]): void;
  setToggle(name: string, on: boolean): void;
  reset(): void;
}

export function createState(options: { secrets: readonly string[]; headerPrefix: string }): ReceiverState {
  const { headerPrefix } = options;
  const ledger = createLedger();
  const targets = createTargets();
  const counters: VerdictCounters = { verified: 0, rejected: 0, unidentified: 0 };
  const toggles = new Map<string, boolean>();
  let keys: VerificationKey[] = options.secrets.map(verificationKey);
  return {
    headerPrefix,
    ledger,
    targets,
    counters,
    counts: () => ({ ...ledger.summary(), ...counters }),
    isOn: (name) => toggles.get(name) ?? false,
    setToggle: (name, on) => toggles.set(name, on),
    setSecrets: (secrets) => {
      keys = secrets.map(verificationKey);
    },
    verify({ headers, body }) {
      assert(body !== null, 'a route that verifies must read the body');
      const nowSeconds = Math.floor(Date.now() / 1000);
      const verification = verifySignature(headers, body, {
        keys,
        nowSeconds,
        toleranceSeconds: TOLERANCE_SECONDS,
        headerPrefix,
      });
      counters[verification.ok ? 'verified' : 'rejected'] += 1;
      return verification;
    },
    reset() {
      ledger.reset();
      targets.reset();
      toggles.clear();
      Object.assign(counters, { verified: 0, rejected: 0, unidentified: 0 });
    },
  };
}
