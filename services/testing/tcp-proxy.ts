import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';

/**
 * A wire between a client and a server that can be made to fail. What a failure did to a connection stays: only connections made after
 * `pass()` work again.
 */
export interface TcpProxy {
  /** The target's URL, by way of this proxy. */
  readonly url: string;
  /** Connections that were ever made. */
  readonly opened: number;
  pass(): void;
  /** Resets every connection, and every new one, until `pass()`. */
  refuse(): void;
  /** Loses every byte, with neither FIN nor RST, on connections that are open and new ones until `pass()`. */
  swallow(): void;
  /** Resets a connection as soon as something of its client that matches was passed on to the server; once. */
  cutAfter(matches: (bytes: Buffer) => boolean): void;
  close(): Promise<void>;
}

interface Wire {
  client: Socket;
  server: Socket;
  dead: boolean;
}

export async function startTcpProxy(targetUrl: string): Promise<TcpProxy> {
  const target = new URL(targetUrl);
  const wires = new Set<Wire>();
  let mode: 'pass' | 'refuse' | 'swallow' = 'pass';
  let opened = 0;
  let cutWhen: ((bytes: Buffer) => boolean) | null = null;

  // Half open, so that what a client says last is not answered by the kernel on behalf of a network that is gone.
  const listener = createServer({ allowHalfOpen: true }, (client) => {
    client.on('error', () => undefined);
    opened += 1;
    if (mode === 'refuse') return void client.resetAndDestroy();
    const server = connect({ host: target.hostname, port: Number(target.port) });
    server.on('error', () => undefined);
    const wire: Wire = { client, server, dead: mode === 'swallow' };
    wires.add(wire);
    client.on('data', (bytes) => {
      if (wire.dead) return;
      if (!cutWhen?.(bytes)) return void server.write(bytes);
      cutWhen = null;
      wire.dead = true;
      server.write(bytes, () => client.resetAndDestroy());
    });
    server.on('data', (bytes) => {
      if (!wire.dead) client.write(bytes);
    });
    client.on('end', () => {
      if (wire.dead) return;
      client.end();
      server.end();
    });
    client.on('close', () => {
      wires.delete(wire);
      // A statement that was passed on is run to its end, as by a server that has not noticed.
      if (wire.dead) server.end();
      else server.destroy();
    });
    server.on('close', () => {
      if (!wire.dead) client.destroy();
    });
  });
  listener.listen(0, '127.0.0.1');
  await once(listener, 'listening');

  const url = new URL(targetUrl);
  url.hostname = '127.0.0.1';
  url.port = String((listener.address() as AddressInfo).port);
  return {
    url: url.href,
    get opened() {
      return opened;
    },
    pass() {
      mode = 'pass';
    },
    refuse() {
      mode = 'refuse';
      for (const { client } of wires) client.resetAndDestroy();
    },
    swallow() {
      mode = 'swallow';
      for (const wire of wires) wire.dead = true;
    },
    cutAfter(matches) {
      cutWhen = matches;
    },
    async close() {
      for (const { client, server } of wires) {
        client.destroy();
        server.destroy();
      }
      listener.close();
      await once(listener, 'close');
    },
  };
}
