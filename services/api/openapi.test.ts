import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { projectRoot } from '../../lib/local/home.ts';
import { PROBLEMS } from './http/problem.ts';
import { OPENAPI_FILE, printOpenApi } from './openapi-file.ts';
import { routes } from './routes.ts';

interface Operation {
  operationId: string;
  security: unknown[];
  parameters?: { name: string; in: string }[];
  responses: Record<string, unknown>;
}

const document = JSON.parse(printOpenApi()) as { paths: Record<string, Record<string, Operation>> };
const operations = Object.entries(document.paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, operation]) => ({ path, method, ...operation })),
);

describe('the OpenAPI document', () => {
  it('is committed as the code prints it (if not: `npm run build && node dist/services/api/write-openapi.js`)', async () => {
    expect(await readFile(join(projectRoot(), OPENAPI_FILE), 'utf8')).toBe(printOpenApi());
  });

  it('holds every route, and no other', () => {
    const documented = operations.map(({ method, path }) => `${method} ${path}`);
    expect(documented.sort()).toEqual(routes.map(({ method, path }) => `${method} ${path}`).sort());
  });

  it('names every operation once', () => {
    expect(new Set(operations.map((operation) => operation.operationId)).size).toBe(routes.length);
  });

  it('asks for a key wherever the route does', () => {
    for (const operation of operations) {
      const route = routes.find((one) => one.name === operation.operationId)!;
      expect(operation.security.length).toBe(route.access === 'open' ? 0 : 1);
    }
  });

  it('declares each parameter that stands in its path', () => {
    for (const { path, parameters = [] } of operations) {
      const inPath = [...path.matchAll(/\{(\w+)\}/g)].map((match) => match[1]);
      expect(parameters.filter((one) => one.in === 'path').map((one) => one.name)).toEqual(inPath);
    }
  });

  it('refers only to components that exist', () => {
    const text = printOpenApi();
    const { components } = JSON.parse(text) as { components: { schemas: object } };
    for (const [, name] of text.matchAll(/#\/components\/schemas\/(\w+)/g)) {
      expect(Object.keys(components.schemas)).toContain(name);
    }
  });
});

describe('the list of problems', () => {
  it('has only statuses of refusal', () => {
    for (const { status } of Object.values(PROBLEMS)) {
      expect(status).toBeGreaterThanOrEqual(400);
      expect(status).toBeLessThan(600);
    }
  });
});

describe('docs/api.md', () => {
  it('names every problem and the statuses they have', async () => {
    const page = await readFile(join(projectRoot(), 'docs/api.md'), 'utf8');
    for (const [code, { status }] of Object.entries(PROBLEMS)) {
      expect(page).toMatch(new RegExp(`^\\| ${status} \\|.*\`${code}\``, 'm'));
    }
  });
});
