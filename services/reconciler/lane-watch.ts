import { drainedUntil, isOtherStream, type StreamState } from '../../lib/broker/stream-state.ts';
import type { Lane } from '../../lib/domain/vocabulary.ts';

/** A stream that was behind for this long left rows behind the cursor. */
const BEHIND_MS = 5_000;

/** What a leader has seen of one lane's stream: how far it is read, whether it was behind, and what a flush took with it. */
export class LaneWatch {
  readonly lane: Lane;
  /** Announcements on this lane up to here were lost with a flushed stream and are to be made again; null when there are none. */
  lostUntil: Date | null = null;
  #last: StreamState | null = null;
  #behindSince: number | null = null;

  constructor(lane: Lane) {
    this.lane = lane;
  }

  /** Takes in what was just read. `databaseAheadMs` is how far the database's clock is ahead of that of Redis. */
  note(
    state: StreamState,
    clock: { databaseNow: Date; databaseAheadMs: number },
  ): { drainedUntil: Date | null; caughtUp: boolean; flushed: boolean } {
    const flushed = this.#last !== null && isOtherStream(this.#last, state);
    if (flushed) this.lostUntil = clock.databaseNow;
    this.#last = state;
    return {
      drainedUntil: drainedUntil(state, clock.databaseNow, clock.databaseAheadMs),
      caughtUp: this.#noteBehind(state),
      flushed,
    };
  }

  // While a stream is behind, its stalled rows are passed over and the cursor goes on; when it has caught up they lie behind the cursor.
  #noteBehind(state: StreamState): boolean {
    const now = performance.now();
    if (state.length > 0) {
      this.#behindSince ??= now;
      return false;
    }
    const caughtUp = this.#behindSince !== null && now - this.#behindSince > BEHIND_MS;
    this.#behindSince = null;
    return caughtUp;
  }
}
