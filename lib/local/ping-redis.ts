import { connect } from 'node:net';

const PING_TIMEOUT_MS = 500;

/**
 * Whether a Redis on 127.0.0.1 takes this password and answers. Spoken by hand, so that starting a server
 * loads no client library.
 */
export function pingRedis(port: number, password: string): Promise<boolean> {
  return new Promise((resolve) => {
    let answer = '';
    const socket = connect({ host: '127.0.0.1', port });
    socket.setEncoding('utf8');
    socket.setTimeout(PING_TIMEOUT_MS, () => socket.destroy());
    socket.on('connect', () => socket.write(`AUTH ${password}\r\nPING\r\n`));
    socket.on('data', (text: string) => {
      answer += text;
      if (answer.split('\r\n').length > 2) socket.destroy();
    });
    socket.on('error', () => undefined); // refused while it starts; `close` follows
    socket.on('close', () => resolve(answer === '+OK\r\n+PONG\r\n'));
  });
}
