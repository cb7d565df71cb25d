import type { IncomingMessage } from 'node:http';
import type { z } from 'zod';
import { type FieldError, invalid, Problem } from './problem.ts';

/** Parses one part of a request; throws a 400 Problem that names every field at fault and its rule. */
export function parsePart(schema: z.ZodType, value: unknown, part: 'body' | 'query' | 'path'): unknown {
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  const errors = parsed.error.issues.flatMap((issue) => fieldErrors(issue, part));
  const detail = errors.map(({ field, rule }) => `${field}: ${rule}`).join('; ');
  throw new Problem('invalid_request', detail.slice(0, 2_000), { errors });
}

const MAX_NAMED = 20;
const SHOWN_NAME_CHARACTERS = 100;

function fieldErrors(issue: z.core.$ZodIssue, part: string): FieldError[] {
  const at = issue.path.map(String);
  if (issue.code === 'unrecognized_keys') {
    return issue.keys.slice(0, MAX_NAMED).map((key) => ({
      field: [...at, key.slice(0, SHOWN_NAME_CHARACTERS)].join('.'),
      rule: 'there is no such field',
    }));
  }
  return [{ field: at.join('.') || part, rule: issue.message }];
}

const JSON_TYPE = /^application\/(json|[a-z0-9.+-]+\+json)\s*(;|$)/i;

/** The value of a JSON body; undefined when there is none. Throws a 400 or 415 Problem. */
export function parseJsonBody(request: IncomingMessage, bytes: Buffer): unknown {
  if (bytes.length === 0) return undefined;
  requireJson(request);
  try {
    return JSON.parse(UTF8.decode(bytes));
  } catch {
    throw invalid('body', 'must be JSON in UTF-8');
  }
}

/** Throws a 415 Problem for a body that is called anything else. */
export function requireJson({ headers }: IncomingMessage): void {
  const type = headers['content-type'];
  if (type === undefined || JSON_TYPE.test(type)) return;
  throw new Problem(
    'unsupported_media_type',
    'the body must be JSON, with the content-type application/json',
  );
}

const UTF8 = new TextDecoder('utf-8', { fatal: true });
