/** A schema as far as it says where ids stand. */
interface Schema {
  $ref?: string;
  format?: string;
  items?: Schema;
  properties?: Record<string, Schema>;
  oneOf?: Schema[];
  anyOf?: Schema[];
}

interface Operation {
  operationId: string;
  parameters?: { in: string; name: string; schema: Schema }[];
  requestBody?: { content: Record<string, { schema: Schema }> };
}

export interface ApiDocument {
  paths: Record<string, Record<string, Operation>>;
  components: { schemas: Record<string, Schema> };
}

/**
 * Every place besides the path in which a request may name something by its id, such as `listDeliveries query:endpoint_id`, read off the OpenAPI
 * document: so a test that has an answer for each of them notices a new one.
 */
export function namedIds(document: ApiDocument): string[] {
  const operations = Object.values(document.paths).flatMap((methods) => Object.values(methods));
  return operations.flatMap((operation) =>
    [...new Set(placesOf(document, operation))].map((place) => `${operation.operationId} ${place}`),
  );
}

function* placesOf(document: ApiDocument, { parameters = [], requestBody }: Operation): Generator<string> {
  for (const { in: where, name, schema } of parameters) {
    // The tenant that an admin acts for is no thing of a tenant's; it is probed on every route.
    if (where !== 'path' && name !== 'relay-tenant-id' && schema.format === 'uuid') yield `${where}:${name}`;
  }
  for (const { schema } of Object.values(requestBody?.content ?? {})) {
    for (const field of idFields(document, schema, '')) yield `body:${field}`;
  }
}

function* idFields(document: ApiDocument, schema: Schema, path: string): Generator<string> {
  const { $ref } = schema;
  const {
    format,
    items,
    properties = {},
    oneOf = [],
    anyOf = [],
  } = $ref ? document.components.schemas[$ref.split('/').at(-1)!]! : schema;
  if (format === 'uuid') yield path;
  for (const one of [...oneOf, ...anyOf]) yield* idFields(document, one, path);
  for (const [name, field] of Object.entries(properties))
    yield* idFields(document, field, path === '' ? name : `${path}.${name}`);
  if (items) yield* idFields(document, items, `${path}[]`);
}
