import fc from 'fast-check';

/** The parts of an OpenAPI document that requests are made of. */
export interface Operation {
  method: string;
  path: string;
  parameters: readonly Parameter[];
  /** By media type. */
  bodies: Readonly<Record<string, Schema>>;
}

interface Parameter {
  name: string;
  in: 'path' | 'query' | 'header';
  required?: boolean;
  schema: Schema;
}

export interface Schema {
  type?: string | readonly string[];
  format?: string;
  pattern?: string;
  enum?: readonly unknown[];
  const?: unknown;
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
  minItems?: number;
  maxItems?: number;
  properties?: Readonly<Record<string, Schema>>;
  required?: readonly string[];
  additionalProperties?: boolean | Schema;
  items?: Schema;
  anyOf?: readonly Schema[];
  oneOf?: readonly Schema[];
  allOf?: readonly Schema[];
  $ref?: string;
}

export interface FuzzedRequest {
  method: string;
  path: string;
  headers: Readonly<Record<string, string | string[]>>;
  body: Buffer | null;
}

/** What a request may name and find. */
export interface Known {
  /** By collection, as paths name it. */
  ids: Readonly<Record<string, readonly string[]>>;
  cursors: readonly string[];
  keys: readonly string[];
}

interface Document {
  paths: Readonly<Record<string, Readonly<Record<string, OperationObject>>>>;
  components?: { schemas?: Readonly<Record<string, Schema>> };
}

interface OperationObject {
  parameters?: readonly Parameter[];
  requestBody?: { content: Readonly<Record<string, { schema: Schema }>> };
}

/** The operations of a document, with every reference in them followed. */
export function operationsOf(document: object): Operation[] {
  const { paths, components } = document as Document;
  const follow = <T>(value: T): T => {
    if (Array.isArray(value)) return value.map(follow) as T;
    if (typeof value !== 'object' || value === null) return value;
    const name = '$ref' in value && typeof value.$ref === 'string' ? value.$ref.split('/').at(-1) : undefined;
    if (name !== undefined) return follow(components?.schemas?.[name]) as T;
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, follow(inner)])) as T;
  };
  return Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, { parameters = [], requestBody }]) => ({
      method: method.toUpperCase(),
      path,
      parameters: follow(parameters),
      bodies: Object.fromEntries(
        Object.entries(requestBody?.content ?? {}).map(([type, { schema }]) => [type, follow(schema)]),
      ),
    })),
  );
}

/** Requests of an operation: most parts are right most of the time, so that what is wrong is met at every depth. */
export function requestsOf(operation: Operation, known: Known): fc.Arbitrary<FuzzedRequest> {
  const values = new Values(known, operation.path.split('/')[2] ?? '');
  return fc
    .record({
      method: mostly(
        fc.constant(operation.method),
        fc.constantFrom('PUT', 'HEAD', 'OPTIONS', 'PATCH', 'POST'),
      ),
      path: pathOf(operation, values),
      query: queryOf(operation, values),
      headers: headersOf(operation, values, known),
      body: bodyOf(operation, values),
    })
    .map(({ method, path, query, headers, body }) => ({
      method,
      path: query === '' ? path : `${path}?${query}`,
      headers: {
        ...headers,
        ...(body === null ? {} : { ...body.headers, 'content-length': String(body.bytes.length) }),
      },
      body: body === null ? null : body.bytes,
    }));
}

function mostly<T>(usual: fc.Arbitrary<T>, odd: fc.Arbitrary<T>, weight = 12): fc.Arbitrary<T> {
  return fc.oneof({ weight, arbitrary: usual }, { weight: 1, arbitrary: odd });
}

/** `odds` to one that it is there at all. */
function sometimes<T, N>(usual: fc.Arbitrary<T>, absent: N, odds: number): fc.Arbitrary<T | N> {
  const weight = Math.round(odds * 20);
  return fc.oneof({ weight, arbitrary: usual }, { weight: 20, arbitrary: fc.constant(absent) });
}

const UNREADABLE = ['%zz', '%', '%00', '%C0%AF', '%ED%A0%80', '..%2f..', '%E0%80%80', ';', '%2e%2e'];

function pathOf({ path, parameters }: Operation, values: Values): fc.Arbitrary<string> {
  const parts = path.split('/').map((part) => {
    const name = /^\{(\w+)\}$/.exec(part)?.[1];
    const parameter = parameters.find((one) => one.in === 'path' && one.name === name);
    if (!parameter) return fc.constant(part);
    const text = values.text(parameter.name, parameter.schema).map((value) => escaped(value) || 'x');
    return mostly(text, fc.constantFrom(...UNREADABLE), 20);
  });
  return fc.tuple(...parts).map((all) => all.join('/'));
}

function queryOf({ parameters }: Operation, values: Values): fc.Arbitrary<string> {
  const known = parameters
    .filter((one) => one.in === 'query')
    .map(({ name, schema, required }) =>
      sometimes(
        values.text(name, schema).map((value) => `${name}=${escaped(value)}`),
        '',
        required ? 20 : 0.5,
      ),
    );
  const odd = fc.constantFrom('limit=1&limit=2', '__proto__=1', 'a[b]=c', '=', '&&', 'limit', ...UNREADABLE);
  return fc
    .tuple(fc.tuple(...known), mostly(fc.constant(''), odd))
    .map(([all, extra]) => [...all, extra].filter((part) => part !== '').join('&'));
}

/** A value for a URL; half a surrogate pair has no bytes of its own and becomes U+FFFD. */
function escaped(value: string): string {
  return encodeURIComponent(Buffer.from(value.slice(0, 3_000), 'utf8').toString('utf8'));
}

function headersOf(
  { parameters }: Operation,
  values: Values,
  { keys }: Known,
): fc.Arbitrary<FuzzedRequest['headers']> {
  const own = parameters
    .filter((one) => one.in === 'header')
    .map(({ name, schema }) => {
      const text = values.text(name, schema).map(headerText);
      const value = mostly<string | string[]>(
        text,
        fc.tuple(text, text).map((pair) => [...pair]),
      );
      // Another tenant than that of everything the request names answers 404, whatever else it holds.
      const odds = name === 'relay-tenant-id' ? 0.1 : 0.5;
      return sometimes(
        value.map((one) => [name, one] as const),
        null,
        odds,
      );
    });
  const key = mostly(
    fc.constantFrom(...keys).map((one) => `Bearer ${one}`),
    fc.constantFrom('', 'Bearer', 'Bearer x', 'Basic YTpi', `Bearer ${'x'.repeat(600)}`, 'Bearer ü'),
    20,
  );
  return fc.tuple(key, fc.tuple(...own)).map(([authorization, given]) => ({
    authorization,
    ...Object.fromEntries(given.filter((one) => one !== null)),
  }));
}

/** What a header can carry at all: characters of one byte, none of control. */
function headerText(value: string): string {
  return [...value.slice(0, 2_000)].map((one) => (/[\x20-\x7e\x80-\xff]/.test(one) ? one : '?')).join('');
}

interface Body {
  headers: Record<string, string>;
  bytes: Buffer;
}

const TYPES = [
  'application/json',
  'application/x-ndjson',
  'text/plain',
  'multipart/form-data',
  '',
  'x',
  'application/json; charset=utf-16',
];

function bodyOf({ bodies, method }: Operation, values: Values): fc.Arbitrary<Body | null> {
  const odd = fc
    .tuple(fc.constantFrom(...TYPES), oddBytes())
    .map(([type, bytes]) => ({ headers: type === '' ? {} : { 'content-type': type }, bytes }));
  const usual = Object.entries(bodies).map(([type, schema]) => bodyOfType(type, schema, values));
  if (usual.length === 0)
    return mostly(fc.constant<Body | null>(null), method === 'GET' ? fc.constant(null) : odd);
  return mostly<Body | null>(fc.oneof(...usual), fc.oneof(odd, fc.constant(null)), 6);
}

function bodyOfType(type: string, schema: Schema, values: Values): fc.Arbitrary<Body> {
  if (type === 'application/json' || type === '*/*') {
    const json = type === '*/*' ? fc.jsonValue() : values.json('', schema);
    return json.map((value) => ({ headers: { 'content-type': 'application/json' }, bytes: print(value) }));
  }
  const lines = fc.array(
    fc.oneof(fc.jsonValue(), fc.record({ type: fc.constant('a.b'), payload: fc.jsonValue() })),
  );
  return lines.map((all) => ({
    headers: { 'content-type': type },
    bytes: Buffer.concat(all.flatMap((line) => [print(line), Buffer.from('\n')])),
  }));
}

/** Numbers that JSON can write and a double cannot hold; printed without their marks. */
const NUMBERS = ['1e400', '-1e400', '-0', '123456789012345678901234567890', '0.1e-400', '9007199254740993'];
const marked = (text: string) => `@number ${text}@`;

function print(value: unknown): Buffer {
  const text = JSON.stringify(value) ?? 'null';
  return Buffer.from(text.replace(/"@number ([^@]*)@"/g, '$1'));
}

function oddBytes(): fc.Arbitrary<Buffer> {
  return fc.oneof(
    fc
      .constantFrom(
        '',
        '{',
        '[',
        'null',
        'true',
        '""',
        '{}x',
        '\ufeff{}',
        '{"a":1,"a":2}',
        '{"__proto__":{"a":1}}',
        '{"\\u0000":1}',
        '\\ud800',
      )
      .map((text) => Buffer.from(text)),
    fc.constantFrom(1_000, 30_000, 200_000).map((depth) => Buffer.from('['.repeat(depth))),
    fc
      .constantFrom(1_000, 5_000)
      .map((depth) => Buffer.from(`${'{"a":'.repeat(depth)}1${'}'.repeat(depth)}`)),
    fc.uint8Array({ maxLength: 200 }).map((bytes) => Buffer.from(bytes)),
  );
}

const ODD_TEXT = [
  '',
  ' ',
  '\0',
  'a\0b',
  '\ud800',
  'x\udfff',
  '\r\nrelay-x: y',
  '‮',
  '👨‍👩‍👧‍👦'.repeat(50),
  'x'.repeat(3_000),
  "' or 1=1 --",
  '../../etc/passwd',
  '<script>alert(1)</script>',
  '-1',
  '0',
  '1e400',
  'NaN',
  '9'.repeat(40),
  'null',
  'infinity',
  '-infinity',
  '0000-00-00T00:00:00Z',
  '0000-01-01T00:00:00Z',
  '9999-12-31T23:59:59.999999999Z',
  '+275760-09-13T00:00:00.001Z',
  '2026-02-30T00:00:00Z',
  '2026-12-01T00:00:00+14:00',
  '~endpoint.*',
  '*.*',
  'http://[::1]:0/',
  'https://sink.example.com/%00',
];

/** Values by schema. What is asked for by a name that Relay knows something for is often that. */
class Values {
  readonly #known: Known;
  /** What an `id` is of. */
  readonly #collection: string;
  readonly #odd: fc.Arbitrary<unknown>;

  constructor(known: Known, collection: string) {
    this.#known = known;
    this.#collection = collection;
    this.#odd = fc.oneof(
      fc.constantFrom(...ODD_TEXT),
      fc.string({ unit: 'binary' }),
      fc.constantFrom(...NUMBERS).map(marked),
      fc.jsonValue(),
      fc.constantFrom(null, true, false, -1, 0, 0.5, 1e9, 2 ** 31, 2 ** 53, 1e308, [], {}),
      fc.constant(Array.from({ length: 300 }, () => 'a')),
    );
  }

  json(name: string, schema: Schema, weight = 12): fc.Arbitrary<unknown> {
    return mostly(this.#fitting(name, schema), this.#odd, weight);
  }

  /** The same as text, for a path, a query or a header. */
  text(name: string, schema: Schema): fc.Arbitrary<string> {
    return this.json(name, schema).map((value) =>
      typeof value === 'string' ? value : String(JSON.stringify(value)),
    );
  }

  #fitting(name: string, schema: Schema): fc.Arbitrary<unknown> {
    if (schema.const !== undefined) return fc.constant(schema.const);
    if (schema.enum) return fc.constantFrom(...schema.enum);
    const variants = schema.anyOf ?? schema.oneOf;
    if (variants) return fc.oneof(...variants.map((variant) => this.#fitting(name, variant)));
    if (schema.allOf)
      return this.#fitting(name, Object.assign({}, schema, { allOf: undefined }, ...schema.allOf));
    if (typeof schema.type === 'object') {
      return fc.oneof(...schema.type.map((type) => this.#fitting(name, { ...schema, type })));
    }
    switch (schema.type) {
      case 'string':
        return this.#string(name, schema);
      case 'integer':
      case 'number':
        return this.#number(name, schema);
      case 'boolean':
        return fc.boolean();
      case 'null':
        return fc.constant(null);
      case 'array':
        return fc.array(this.json(name, schema.items ?? {}), {
          minLength: schema.minItems ?? 0,
          maxLength: Math.min(4, schema.maxItems ?? 4),
        });
      case 'object':
        return this.#object(schema);
      default:
        return fc.jsonValue();
    }
  }

  #object({ properties = {}, required = [], additionalProperties }: Schema): fc.Arbitrary<unknown> {
    const fields = Object.fromEntries(
      // Many of them, and one that is wrong is enough for a refusal.
      Object.entries(properties).map(([name, inner]) => [name, this.json(name, inner, 60)]),
    );
    const optional = Object.keys(fields).filter((name) => !required.includes(name));
    const kept = fc.subarray(optional, { maxLength: Math.min(optional.length, 4) });
    const named = fc
      .tuple(fc.record(fields), kept)
      .map(([all, some]) => Object.fromEntries([...required, ...some].map((name) => [name, all[name]])));
    if (!additionalProperties)
      return mostly(
        named,
        named.map((value) => ({ ...value, nonsense: 1 })),
        20,
      );
    const inner = typeof additionalProperties === 'object' ? additionalProperties : {};
    const keys = fc.oneof(
      fc.constantFrom('x-one', 'content-type', 'a b', '', '\0', '__proto__'),
      fc.string({ unit: 'binary' }),
    );
    return fc
      .tuple(named, fc.dictionary(keys, this.json('', inner), { maxKeys: 4 }))
      .map(([one, more]) => ({ ...one, ...more }));
  }

  #id(name: string): fc.Arbitrary<string> {
    const { ids } = this.#known;
    const collection = name === 'id' ? this.#collection : `${/(\w+?)[_-]ids?$/.exec(name)?.[1] ?? ''}s`;
    const all = fc.constantFrom(...Object.values(ids).flat());
    const own = ids[collection] ?? [];
    return mostly(own.length > 0 ? fc.constantFrom(...own) : all, fc.oneof(all, fc.uuid()), 6);
  }

  #number(name: string, { minimum = 0, maximum = 1_000, type }: Schema): fc.Arbitrary<number> {
    // A request that is told to wait does so.
    if (name.startsWith('wait')) return fc.constant(minimum);
    if (type === 'integer')
      return fc.oneof(fc.integer({ min: minimum, max: maximum }), fc.constantFrom(minimum, maximum));
    return fc.oneof(
      fc.double({ min: minimum, max: maximum, noNaN: true }),
      fc.constantFrom(minimum, maximum),
    );
  }

  #string(name: string, { format, pattern, minLength = 0, maxLength = 200 }: Schema): fc.Arbitrary<string> {
    const { cursors } = this.#known;
    if (name === 'cursor') return fc.oneof(fc.constantFrom(...cursors), tampered(cursors));
    if (format === 'uuid') return this.#id(name);
    if (format === 'date-time')
      return fc
        .date({ noInvalidDate: true, min: new Date(0), max: new Date(4e12) })
        .map((date) => date.toISOString());
    if (name === 'secret') return mostly(fc.constant(`whsec_${'A'.repeat(43)}=`), fc.string());
    if (name === 'url')
      return fc.constantFrom(
        'https://sink.example.com/one',
        'https://sink.example.com/in',
        'mailto:a@example.com',
        'slack://T1/B1',
        'telegram://-1001',
        'discord://1',
      );
    if (/type/.test(name)) return fc.constantFrom('order.paid', 'order.*', '*', 'a');
    if (/operational/.test(name)) return fc.constantFrom('*', 'endpoint.*', 'delivery.dead');
    if (name === 'file') return fc.constantFrom('swagger-ui.css', 'start.js');
    if (pattern) return fc.stringMatching(new RegExp(pattern));
    return fc.string({ minLength, maxLength: Math.min(maxLength, 200) });
  }
}

/** Cursors with a byte changed, cut off or too many, and what reads like one. */
function tampered(cursors: readonly string[]): fc.Arbitrary<string> {
  return fc.oneof(
    fc.tuple(fc.constantFrom(...cursors), fc.nat(100), fc.nat(255)).map(([cursor, at, byte]) => {
      const bytes = Buffer.from(cursor, 'base64url');
      bytes[at % bytes.length] = byte;
      return bytes.toString('base64url');
    }),
    fc.tuple(fc.constantFrom(...cursors), fc.nat(60)).map(([cursor, length]) => cursor.slice(0, length)),
    fc.constantFrom(...cursors).map((cursor) => `${cursor}${cursor}`),
    fc.string().map((text) => Buffer.from(text).toString('base64url')),
  );
}
