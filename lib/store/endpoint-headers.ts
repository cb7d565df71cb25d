import type { SecretKeys } from '../config/secret-keys.ts';
import type { CustomHeaders } from '../domain/custom-headers.ts';
import { openSecret, SecretUnreadableError, sealSecret } from './secret-box.ts';

/** What custom headers are to become: all of them, where null leaves the value that is stored under the name. */
export type HeadersChange = Readonly<Record<string, string | null>>;

/** The columns of an endpoint that hold custom headers. */
export interface HeaderColumns {
  headers: Buffer | null;
  header_names: string[];
}

/** Seals custom headers, names and values, as one value; the names stand beside it in the clear. */
export function headerColumns(keys: SecretKeys, endpointId: string, headers: CustomHeaders): HeaderColumns {
  const names = Object.keys(headers);
  return {
    headers: names.length === 0 ? null : sealSecret(keys, endpointId, JSON.stringify(headers)),
    header_names: names,
  };
}

/** The reverse; nothing stored is no headers. Throws what `openSecret` throws, and never any of what it opened. */
export function openHeaders(keys: SecretKeys, endpointId: string, sealed: Buffer | null): CustomHeaders {
  if (sealed === null) return {};
  const opened = openSecret(keys, endpointId, sealed);
  try {
    return JSON.parse(opened) as CustomHeaders;
  } catch {
    // Without a cause: the parser repeats what it could not read, and that is credentials.
    throw new SecretUnreadableError(`the stored headers of endpoint ${endpointId} cannot be read`);
  }
}

/** What is stored after a change, or the name of a header whose value was to be kept and is not there. */
export function changedHeaders(
  stored: CustomHeaders,
  change: HeadersChange,
): { headers: CustomHeaders } | { missing: string } {
  const values = new Map(Object.entries(stored).map(([name, value]) => [name.toLowerCase(), value]));
  const headers: [string, string][] = [];
  for (const [name, given] of Object.entries(change)) {
    const value = given ?? values.get(name.toLowerCase());
    if (value === undefined) return { missing: name };
    headers.push([name, value]);
  }
  return { headers: Object.fromEntries(headers) };
}
