import { WAKE_MODES, type WakeMode } from '../domain/vocabulary.ts';
import type { Metrics } from './registry.ts';

/** What every process of the fleet tells of itself. */
export interface ProcessState {
  wake: () => WakeMode;
  brokerUp: () => boolean;
  /** Name and age, ms, of each loop's last good round. */
  loops: () => readonly { name: string; ageMs: number }[];
}

export function registerProcessMetrics(
  metrics: Metrics,
  loopNames: readonly string[],
  state: ProcessState,
): void {
  metrics.gauges(
    'relay_wake_mode',
    'How this process learns of work: 1 for the mode that is on.',
    'mode',
    WAKE_MODES,
    () => ({
      [state.wake()]: 1,
    }),
  );
  metrics.gauge(
    'relay_broker_up',
    'Whether Redis answers this process and takes its writes (1) or not (0).',
    () => (state.brokerUp() ? 1 : 0),
  );
  metrics.gauges(
    'relay_loop_age_seconds',
    'Time since the last good round of each loop of this process.',
    'loop',
    loopNames,
    () => Object.fromEntries(state.loops().map((loop) => [loop.name, loop.ageMs / 1000])),
  );
}
