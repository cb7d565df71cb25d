import { setTimeout as sleep } from 'node:timers/promises';
import type { Window } from '../audit.ts';
import type { PrivateFleet } from '../fleet.ts';
import { busiestEndpointSecond } from './figures.ts';
import type { NeighbourOptions } from './options.ts';
import type { Touch } from './touches.ts';

/** Something that was stopped in the measured part, from the order to the moment at which it was there again. */
export interface Stop extends Window {
  what: 'postgres' | 'leader';
}

/** Lets the measured seconds pass, with the stops that were asked for in them. */
export async function measuredSeconds(
  fleet: Pick<PrivateFleet, 'restartPostgres' | 'killLeader'>,
  seconds: number,
  options: Pick<NeighbourOptions, 'restartPostgresAtSeconds' | 'changeLeaderAtSeconds'>,
): Promise<Stop[]> {
  const startMs = performance.now();
  const at = async (what: Stop['what'], atSeconds: number | null, work: () => Promise<void>) => {
    if (atSeconds === null) return [];
    await sleep(atSeconds * 1000);
    const fromMs = Date.now();
    await work();
    return [{ what, fromMs, toMs: Date.now() }];
  };
  const stops = await Promise.all([
    at('leader', options.changeLeaderAtSeconds, fleet.killLeader),
    at('postgres', options.restartPostgresAtSeconds, fleet.restartPostgres),
    sleep(seconds * 1000),
  ]);
  await sleep(Math.max(0, seconds * 1000 - (performance.now() - startMs)));
  return [...stops[0], ...stops[1]];
}

const SET_ASIDE_MS = 1_000;

export interface BusiestSeconds {
  /** Of the measured part, without what is set aside for stops. */
  usual: number;
  /** From the first stop's end on, the second in which it ended aside; null without a stop. */
  afterStop: number | null;
  /** Of the stops themselves and the second in which each ended. */
  aside: number | null;
}

/** A stop ends with the first claim after it: processes need a moment to notice that the database is back. */
export function busiestSeconds(touches: readonly Touch[], stops: readonly Stop[]): BusiestSeconds {
  const asides = stops.map(({ fromMs, toMs }) => {
    const ended = touches.find(({ kind, atMs }) => kind === 'claimed' && atMs >= toMs)?.atMs ?? toMs;
    return { fromMs, toMs: ended + SET_ASIDE_MS };
  });
  const isAside = ({ atMs }: Touch) => asides.some(({ fromMs, toMs }) => atMs >= fromMs && atMs < toMs);
  const usual = touches.filter((touch) => !isAside(touch));
  if (asides.length === 0) return { usual: busiestEndpointSecond(usual), afterStop: null, aside: null };
  const firstEndMs = Math.min(...asides.map(({ toMs }) => toMs));
  return {
    usual: busiestEndpointSecond(usual),
    afterStop: busiestEndpointSecond(usual.filter(({ atMs }) => atMs >= firstEndMs)),
    aside: busiestEndpointSecond(touches.filter(isAside)),
  };
}
