import { createServer, type Server, type Socket } from 'node:net';
import { afterEach, describe, expect, it } from 'vitest';
import { type Answer, Lane, parseAnswer } from './lane.ts';

const REQUEST = 'POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n';
const OK = 'HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\n{}';

let server: Server | undefined;
let lane: Lane | undefined;
afterEach(() => {
  lane?.close();
  server?.close();
});

/** A server that treats each request's bytes as told. */
async function laneTo(onRequest: (socket: Socket) => void): Promise<Lane> {
  const listening = createServer((socket) =>
    socket.on('data', () => onRequest(socket)).on('error', () => undefined),
  );
  server = listening;
  await new Promise<void>((resolve) => listening.listen(0, '127.0.0.1', resolve));
  const { port } = listening.address() as { port: number };
  lane = new Lane('127.0.0.1', port);
  return lane;
}

const ask = (on: Lane) => new Promise<Answer>((resolve) => on.send(REQUEST, 0, resolve));

describe('a lane', () => {
  it('uses one connection for request after request', async () => {
    const sockets = new Set<Socket>();
    const open = await laneTo((socket) => {
      sockets.add(socket);
      socket.write(OK);
    });
    for (let n = 0; n < 3; n += 1) expect(await ask(open)).toMatchObject({ status: 202, text: '{}' });
    expect(sockets.size).toBe(1);
  });

  it('puts an answer together that arrives in pieces', async () => {
    const open = await laneTo((socket) => {
      [...OK].forEach((byte, n) => {
        setTimeout(() => socket.write(byte), n);
      });
    });
    expect(await ask(open)).toMatchObject({ status: 202, text: '{}' });
  });

  it('reports an unknown outcome when the connection ends, and dials anew for the next', async () => {
    let requests = 0;
    const open = await laneTo((socket) => {
      requests += 1;
      if (requests === 1) socket.destroy();
      else socket.write(OK);
    });
    expect(await ask(open)).toMatchObject({ status: 0 });
    expect(await ask(open)).toMatchObject({ status: 202 });
  });

  it('dials anew after an answer that closes', async () => {
    const sockets = new Set<Socket>();
    const open = await laneTo((socket) => {
      sockets.add(socket);
      socket.end(OK.replace('\r\n\r\n', '\r\nConnection: close\r\n\r\n'));
    });
    for (let n = 0; n < 2; n += 1) expect(await ask(open)).toMatchObject({ status: 202 });
    expect(sockets.size).toBe(2);
  });

  it('gives up on a request past its limit only', async () => {
    const open = await laneTo(() => undefined);
    const answer = ask(open);
    open.expire(1000, 1000);
    open.expire(1001, 1000);
    expect(await answer).toEqual({ status: 0, text: 'timeout' });
  });

  it('reports a server that is not there', async () => {
    const open = await laneTo(() => undefined);
    await new Promise((resolve) => server?.close(resolve));
    expect(await ask(open)).toEqual({ status: 0, text: 'ECONNREFUSED' });
  });
});

describe('parseAnswer', () => {
  it('knows every cut of an answer as not whole', () => {
    for (let cut = 0; cut < OK.length; cut += 1)
      expect(parseAnswer(Buffer.from(OK.slice(0, cut)))).toBeNull();
    expect(parseAnswer(Buffer.from(OK))).toEqual({ status: 202, text: '{}', closes: false });
  });

  it('refuses an answer whose end it cannot know', () => {
    expect(() => parseAnswer(Buffer.from('HTTP/1.1 200 OK\r\n\r\n'))).toThrow(/content-length/);
  });
});
