import { relayVersion } from '../../lib/runtime/version.ts';
import { describeApi } from './openapi.ts';
import { routes } from './routes.ts';

/** Where the document stands, from the root of the project. */
export const OPENAPI_FILE = 'docs/openapi.json';

/** The text of docs/openapi.json. A test holds the committed file against it. */
export function printOpenApi(): string {
  return `${JSON.stringify(describeApi(routes, relayVersion()), null, 2)}\n`;
}
