/** One delivery URL as the receiver reads it, parsed once and kept: a load test sends the same few for ever. */
export interface Target {
  readonly path: string;
  readonly query: URLSearchParams;
  /** Requests read in full at this very URL, so that `/flaky?pct=50&endpoint=2` has a sequence of its own. */
  hits: number;
}

export interface Targets {
  of(requestUrl: string): Target;
  reset(): void;
}

/** Far more URLs than a test uses; past it the oldest knowledge is dropped rather than memory spent without bound. */
const MAX_TARGETS = 10_000;

export function createTargets(): Targets {
  const known = new Map<string, Target>();
  return {
    of(requestUrl) {
      const found = known.get(requestUrl);
      if (found) return found;
      if (known.size >= MAX_TARGETS) known.clear();
      const target = parse(requestUrl);
      known.set(requestUrl, target);
      return target;
    },
    reset: () => known.clear(),
  };
}

/** A number from the query, or the fallback when it is absent or no number. */
export function numberIn(target: Target, name: string, fallback: number): number {
  const raw = target.query.get(name);
  const value = raw === null || raw === '' ? Number.NaN : Number(raw);
  return Number.isFinite(value) ? value : fallback;
}

function parse(requestUrl: string): Target {
  const mark = requestUrl.indexOf('?');
  const path = mark < 0 ? requestUrl : requestUrl.slice(0, mark);
  return { path, query: new URLSearchParams(mark < 0 ? '' : requestUrl.slice(mark + 1)), hits: 0 };
}
