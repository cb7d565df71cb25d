/**
 * A local service could not be had on this machine. The message is one sentence for the person at the
 * terminal, naming what to install or set. Relay runs without Redis, so callers may catch this for Redis.
 */
export class LocalServiceUnavailable extends Error {
  override readonly name = 'LocalServiceUnavailable';
  readonly service: 'postgres' | 'redis';

  constructor(service: 'postgres' | 'redis', message: string, options?: ErrorOptions) {
    super(message, options);
    this.service = service;
  }
}

export type LogLine = (line: string) => void;
