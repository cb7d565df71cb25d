import { connect, type Socket } from 'node:net';

/** A client that writes what it is told to, however wrong, and keeps every byte that comes back. */
export class RawClient {
  readonly socket: Socket;
  readonly closed: Promise<void>;
  #received = '';
  #ended = false;

  constructor(url: string) {
    const { hostname, port } = new URL(url);
    this.socket = connect({ host: hostname, port: Number(port) });
    this.socket.setEncoding('latin1');
    this.socket.on('data', (text: string) => {
      this.#received += text;
    });
    this.socket.on('error', () => undefined);
    this.closed = new Promise((resolve) =>
      this.socket.once('close', () => {
        this.#ended = true;
        resolve();
      }),
    );
  }

  get received(): string {
    return this.#received;
  }

  get isClosed(): boolean {
    return this.#ended;
  }

  send(text: string | Buffer): this {
    this.socket.write(typeof text === 'string' ? Buffer.from(text, 'latin1') : text);
    return this;
  }

  /** Waits until what came back matches; throws what came instead when the time is over, or the connection ended without it. */
  async expect(pattern: RegExp, withinMs = 5_000): Promise<RegExpExecArray> {
    const deadline = performance.now() + withinMs;
    for (;;) {
      const match = pattern.exec(this.#received);
      if (match) return match;
      if (this.#ended || performance.now() > deadline) {
        throw new Error(`expected ${pattern}, got ${JSON.stringify(this.#received)}`);
      }
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }

  end(): void {
    this.socket.destroy();
  }
}
