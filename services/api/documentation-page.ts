import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';

/**
 * What the page may load and do: files and calls of this very server, and the pictures that stand inside its style sheet. No inline script or
 * style, no frame around it.
 */
export const PAGE_POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ');

// Relative, so that the page works behind a proxy that puts a prefix before the paths.
export const PAGE = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>The API of Relay</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="page"><noscript>The document of this API is <a href="openapi.json">openapi.json</a>.</noscript></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
`;

// Nothing is sent to the validator that Swagger UI knows of elsewhere.
const START = `SwaggerUIBundle({
  url: 'openapi.json',
  dom_id: '#page',
  deepLinking: true,
  validatorUrl: null,
});
`;

export interface PageFile {
  mediaType: string;
  text: string;
}

const TYPES: Readonly<Record<string, string>> = {
  'swagger-ui.css': 'text/css; charset=utf-8',
  'swagger-ui-bundle.js': 'text/javascript; charset=utf-8',
};

const loaded = new Map<string, Promise<string>>();

/** A file that the page loads; null when it loads none of this name. They come from the package swagger-ui-dist, and are read once. */
export async function findPageFile(name: string): Promise<PageFile | null> {
  if (name === 'start.js') return { mediaType: 'text/javascript; charset=utf-8', text: START };
  const mediaType = Object.hasOwn(TYPES, name) ? TYPES[name] : undefined;
  if (mediaType === undefined) return null;
  const text = loaded.get(name) ?? readFile(require.resolve(`swagger-ui-dist/${name}`), 'utf8');
  loaded.set(name, text);
  text.catch(() => loaded.delete(name));
  return { mediaType, text: await text };
}

const require = createRequire(import.meta.url);
