export interface Prepared {
  /** false: the compiler reported errors; what could be emitted is in dist. */
  built: boolean;
}
/** Installs dependencies and builds dist where they are missing or stale; says so on stderr when it does. */
export function prepare(root: string): Promise<Prepared>;
/** Builds dist when a source is newer. @returns false when the compiler reported errors */
export function buildWhenStale(root: string): Promise<boolean>;
