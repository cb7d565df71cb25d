/** This process's place among the live dispatchers. */
export interface Share {
  /** How many live dispatchers come before it, in an order on which all agree. */
  rank: number;
  live: number;
}

/**
 * The part of an endpoint's cap that one dispatcher may use, so that all together keep to the cap. The remainder of the division goes to a
 * different place in the order for each endpoint, or the first dispatcher would have more of everything.
 *
 * Never below 1: a dispatcher without a share would have to give back every id that it reads. So a cap below the number of dispatchers acts
 * as one for each of them.
 */
export function capShare(cap: number, { rank, live }: Share, endpointId: string): number {
  const each = Math.floor(cap / live);
  const extra = cap % live;
  const place = (rank + turn(endpointId)) % live;
  return Math.max(1, each + (place < extra ? 1 : 0));
}

/** The last digits of a uuid are random in every version. */
function turn(endpointId: string): number {
  return Number.parseInt(endpointId.slice(-6), 16) || 0;
}
