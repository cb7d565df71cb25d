import { isUtf8 } from 'node:buffer';
import type { PostedItem } from '../../../lib/domain/posted-items.ts';
import { invalid } from '../http/problem.ts';

/** Kept as the bytes that stand in the body, and never parsed. */
const RAW = ['payload', 'body'];
const PARSED = [
  ...[
    'kind',
    'type',
    'payload_base64',
    'content_type',
    'idempotency_key',
    'endpoint_id',
    'deliver_at',
    'expires_at',
  ],
  ...['idempotencyKey', 'endpointId', 'event', 'to', 'subject', 'html', 'text', 'headers'],
];
/** Every name that some item has. */
const KNOWN: ReadonlyMap<string, 'raw' | 'parsed'> = new Map([
  ...RAW.map((name) => [name, 'raw'] as const),
  ...PARSED.map((name) => [name, 'parsed'] as const),
]);

/**
 * The fields of an item that was posted, to be parsed by a schema: what is passed on as it came stands there as its bytes, everything else as
 * its value. Throws a 400 Problem, also for a name that no item has.
 */
export function fieldsOf(bytes: Buffer, item: PostedItem): Record<string, unknown> {
  if (item.fault !== null) throw invalid('item', item.fault);
  if (!isUtf8(bytes.subarray(item.start, item.end))) throw invalid('item', 'must be in UTF-8');
  const offsets = item.fields ?? [];
  const fields: Record<string, unknown> = {};
  for (let at = 0; at < offsets.length; at += 4) {
    const name = nameAt(bytes, offsets[at]!, offsets[at + 1]!);
    const how = KNOWN.get(name);
    if (how === undefined) throw invalid(name.slice(0, 100), 'there is no such field');
    // Programs differ in which of the two they would take.
    if (Object.hasOwn(fields, name)) throw invalid(name, 'stands twice');
    const [start, end] = [offsets[at + 2]!, offsets[at + 3]!];
    fields[name] =
      how === 'raw' ? bytes.subarray(start, end) : JSON.parse(bytes.toString('utf8', start, end));
  }
  return fields;
}

function nameAt(bytes: Buffer, start: number, end: number): string {
  const plain = bytes.toString('latin1', start + 1, end - 1);
  return KNOWN.has(plain) ? plain : (JSON.parse(bytes.toString('utf8', start, end)) as string);
}
