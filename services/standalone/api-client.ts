/** An answer that was not the one hoped for. */
export class ApiError extends Error {
  override readonly name = 'ApiError';
  readonly status: number;
  /** The problem's stable code; null when the answer was no problem document. */
  readonly code: string | null;

  constructor(request: string, status: number, body: string) {
    super(`${request} answered ${status}: ${body.slice(0, 500)}`);
    this.status = status;
    this.code = codeOf(body);
  }
}

const TIMEOUT_MS = 10_000;

/** Speaks to an API as any operator would. */
export class ApiClient {
  readonly url: string;
  readonly #key: string;

  constructor(url: string, key: string) {
    this.url = url;
    this.#key = key;
  }

  /** The JSON of the answer (undefined when it has none). Throws ApiError unless the status is 2xx. */
  async request<T>(method: string, path: string, body?: object): Promise<T> {
    const response = await fetch(this.url + path, {
      method,
      headers: { authorization: `Bearer ${this.#key}`, 'content-type': 'application/json' },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    const text = await response.text();
    if (!response.ok) throw new ApiError(`${method} ${path}`, response.status, text);
    return (text === '' ? undefined : JSON.parse(text)) as T;
  }

  get<T>(path: string): Promise<T> {
    return this.request('GET', path);
  }

  post<T>(path: string, body?: object): Promise<T> {
    return this.request('POST', path, body);
  }

  patch<T>(path: string, body: object): Promise<T> {
    return this.request('PATCH', path, body);
  }
}

function codeOf(body: string): string | null {
  try {
    const { code } = JSON.parse(body) as { code?: unknown };
    return typeof code === 'string' ? code : null;
  } catch {
    return null;
  }
}
