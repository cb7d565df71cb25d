/** One attempt, ready to be sent. */
export interface OutboundRequest {
  /** Fragment and credentials have no place in it: it is refused. */
  url: URL;
  /** Flat: name, value, name, value. Host, content-length and connection are added here. */
  headers: readonly string[];
  /** Sent as it is, byte for byte. */
  body: Buffer;
  /** The end of everything (DNS, connect, TLS, write, headers, body), on the clock of performance.now(), ms. */
  deadlineAt: number;
  /** Until the request is written: DNS, connect and TLS together. */
  connectTimeoutMs: number;
  /** Between signs of life once it is written. */
  idleTimeoutMs: number;
}
