import type { IncomingMessage, ServerResponse } from 'node:http';
import { Problem } from './problem.ts';

/**
 * Reads a request's body, or says why not: `aborted` when the client went away or took too long (the server's request timeout has
 * answered 408 then). Sends "100 Continue" first to a client that waits for it, so call it after everything that can be judged by the
 * headers. Throws a 413 Problem as soon as the limit is passed, by the declared length before anything is read.
 */
export function readBody(
  request: IncomingMessage,
  response: ServerResponse,
  maxBytes: number,
): Promise<Buffer | 'aborted'> {
  const chunks: Buffer[] = [];
  return takeBody(request, response, {
    maxBytes,
    take: (chunk) => void chunks.push(chunk),
    whole: (size) => (chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks, size)),
  });
}

export interface BodyTaker<T> {
  maxBytes: number;
  /** What it throws is what the reading throws; the rest stays unread. */
  take: (chunk: Buffer) => void;
  /** What came of it, once all of it was taken. */
  whole: (size: number) => T;
}

/** The same piece by piece, as it arrives. */
export function takeBody<T>(
  request: IncomingMessage,
  response: ServerResponse,
  { maxBytes, take, whole }: BodyTaker<T>,
): Promise<T | 'aborted'> {
  if (Number(request.headers['content-length'] ?? 0) > maxBytes) return Promise.reject(tooLarge(maxBytes));
  if (request.headers.expect !== undefined) response.writeContinue();
  return new Promise((resolve, reject) => {
    let size = 0;
    const refuse = (error: unknown) => {
      request.removeAllListeners('data');
      request.pause();
      reject(error);
    };
    request.on('data', (chunk: Buffer) => {
      size += chunk.length;
      if (size > maxBytes) return refuse(tooLarge(maxBytes));
      try {
        take(chunk);
      } catch (error) {
        refuse(error);
      }
    });
    request.once('end', () => {
      try {
        resolve(whole(size));
      } catch (error) {
        reject(error);
      }
    });
    // After `end` this changes nothing; before it, the rest will never come.
    request.once('close', () => resolve('aborted'));
    request.once('error', () => resolve('aborted'));
  });
}

function tooLarge(maxBytes: number): Problem {
  const rule = `the body is larger than ${maxBytes} bytes`;
  return new Problem('payload_too_large', rule, { errors: [{ field: 'body', rule }] });
}
