import type { OutgoingHttpHeaders } from 'node:http';
import { z } from 'zod';
import { relayVersion } from '../../../lib/runtime/version.ts';
import { findPageFile, PAGE, PAGE_POLICY } from '../documentation-page.ts';
import { Problem } from '../http/problem.ts';
import { defineRoute, type Route } from '../http/route.ts';
import { describeApi } from '../openapi.ts';

const tag = 'Documentation';

const HEADERS: OutgoingHttpHeaders = {
  'x-content-type-options': 'nosniff',
  'referrer-policy': 'no-referrer',
  'cache-control': 'public, max-age=300',
};

const DocumentShape = z.looseObject({ openapi: z.literal('3.1.0'), paths: z.looseObject({}) });

/** The document of a table of routes, which holds these too, and a page to read it by. Everything is served from here: it works offline. */
export function documentationRoutes(routes: () => readonly Route[]): Route[] {
  let document: object | undefined;
  return [
    defineRoute(
      {
        name: 'getOpenApi',
        method: 'get',
        path: '/openapi.json',
        access: 'open',
        tag,
        summary: 'This document',
        answers: [{ status: 200, description: 'OpenAPI 3.1', schema: DocumentShape }],
      },
      async () => {
        document ??= describeApi(routes(), relayVersion());
        return { status: 200, json: document, headers: HEADERS };
      },
    ),
    defineRoute(
      {
        name: 'getDocs',
        method: 'get',
        path: '/docs',
        access: 'open',
        tag,
        summary: 'This document as a page, to read and to try',
        answers: [{ status: 200, description: 'The page', mediaType: 'text/html' }],
      },
      async () => ({
        status: 200,
        text: PAGE,
        headers: {
          ...HEADERS,
          'content-type': 'text/html; charset=utf-8',
          'content-security-policy': PAGE_POLICY,
        },
      }),
    ),
    defineRoute(
      {
        name: 'getDocsFile',
        method: 'get',
        path: '/docs/{file}',
        access: 'open',
        tag,
        summary: 'A file that the page loads',
        params: z.strictObject({ file: z.string() }),
        answers: [{ status: 200, description: 'The file', mediaType: 'text/*' }],
        problems: ['route_not_found'],
      },
      async ({ params }) => {
        const file = await findPageFile(params.file);
        if (!file) throw new Problem('route_not_found', 'the page has no such file');
        return { status: 200, text: file.text, headers: { ...HEADERS, 'content-type': file.mediaType } };
      },
    ),
  ];
}
