import type { ProblemCode } from '../api/http/problem.ts';
import type { Answer as DocumentedAnswer, Route } from '../api/http/route.ts';
import { problemsOf } from '../api/openapi.ts';
import { ProblemShape } from '../api/routes/shapes.ts';
import { routes } from '../api/routes.ts';

/** What of an answer is held against the document. */
export interface Answered {
  status: number;
  headers: Headers;
  text: string;
}

/** What the server or the router may answer before a route is asked, or when Relay is at fault; no route documents it. */
const ANYWHERE: readonly ProblemCode[] = [
  'invalid_request',
  'route_not_found',
  'method_not_allowed',
  'request_timeout',
  'expectation_failed',
  'headers_too_large',
  'internal',
];

/**
 * Throws when an answer is none that the document of the API has: another status, media type or shape than those of its route, or a problem
 * that its route does not list.
 */
export function requireDocumented(method: string, path: string, answer: Answered): void {
  const route = findRoute(method, path);
  const documented = route?.answers.find((one) => one.status === answer.status);
  const fault = documented ? faultOf(documented, answer) : problemFault(route, answer);
  if (fault === null) return;
  throw new Error(`${method} ${path} answered ${answer.status}, undocumented: ${fault}\n${answer.text}`);
}

/** The route that answers; what has no parameter in its path goes first. HEAD is answered as GET. */
export function findRoute(method: string, path: string): Route | undefined {
  const [pathname = ''] = path.split('?');
  const wanted = method === 'HEAD' ? 'get' : method.toLowerCase();
  return [...routes]
    .sort((a, b) => a.path.split('{').length - b.path.split('{').length)
    .find((route) => route.method === wanted && pathPattern(route.path).test(pathname));
}

function pathPattern(path: string): RegExp {
  const literal = path.replace(/[.*+?^$()|[\]\\]/g, '\\$&');
  return new RegExp(`^${literal.replace(/\{\w+\}/g, '[^/]+')}$`);
}

function faultOf({ schema, mediaType }: DocumentedAnswer, answer: Answered): string | null {
  if (!schema && !mediaType) return answer.text === '' ? null : 'it has a body';
  const type = answer.headers.get('content-type') ?? '';
  const wanted = mediaType ?? 'application/json';
  if (wanted !== '*/*' && !type.startsWith(wanted.replace(/\*$/, ''))) return `its media type is ${type}`;
  if (!schema || wanted !== 'application/json' || answer.text === '') return null;
  const parsed = schema.safeParse(parseJson(answer.text));
  return parsed.success ? null : parsed.error.message;
}

function problemFault(route: Route | undefined, answer: Answered): string | null {
  if (answer.status < 400) return 'its route documents no such status';
  const type = answer.headers.get('content-type');
  if (type !== 'application/problem+json') return `its media type is ${type}`;
  if (answer.text === '') return null;
  const problem = ProblemShape.safeParse(parseJson(answer.text));
  if (!problem.success) return problem.error.message;
  const { code, status } = problem.data;
  if (status !== answer.status) return `it says that its status is ${status}`;
  const listed = route ? [...problemsOf(route), ...ANYWHERE] : ANYWHERE;
  return listed.includes(code) ? null : `its route does not list the problem ${code}`;
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
