import { z } from 'zod';

/**
 * The receiver's settings. `RELAY_RECEIVER_BIND` is `host:port` (`[::1]:9099` for IPv6, port 0 for a free one);
 * `RELAY_RECEIVER_SECRET` holds one secret, or several parted by commas, any of which may match;
 * `RELAY_RECEIVER_HEADER_PREFIX` is the first part of the names of Relay's own headers.
 */
export interface ReceiverConfig {
  host: string;
  port: number;
  secrets: string[];
  headerPrefix: string;
}

const BIND = /^(?:\[(?<v6>[0-9a-fA-F:.]+)\]|(?<host>[^:[\]]+)):(?<port>\d{1,5})$/;

const ReceiverEnv = z.object({
  RELAY_RECEIVER_BIND: z
    .string()
    .default('127.0.0.1:9099')
    .refine((bind) => Number(BIND.exec(bind)?.groups?.port ?? Number.NaN) <= 65_535, {
      error: 'must be host:port, for example 127.0.0.1:9099',
    }),
  RELAY_RECEIVER_SECRET: z
    .string()
    .default('whsec_test')
    .transform((list) => list.split(',').map((secret) => secret.trim()))
    .refine((secrets) => secrets.every((secret) => secret !== ''), { error: 'holds an empty secret' }),
  RELAY_RECEIVER_HEADER_PREFIX: z
    .string()
    .regex(/^[A-Za-z][A-Za-z0-9-]*$/, { error: 'must be the start of a header name' })
    .default('relay'),
});

/** Throws one sentence for each setting that makes no sense. */
export function readReceiverEnv(env: Record<string, string | undefined>): ReceiverConfig {
  const parsed = ReceiverEnv.safeParse(env);
  if (!parsed.success) {
    throw new Error(
      parsed.error.issues.map(({ path, message }) => `${path.join('.')} ${message}`).join('; '),
    );
  }
  const { v6, host, port } = BIND.exec(parsed.data.RELAY_RECEIVER_BIND)!.groups!;
  return {
    host: v6 ?? host!,
    port: Number(port),
    secrets: parsed.data.RELAY_RECEIVER_SECRET,
    headerPrefix: parsed.data.RELAY_RECEIVER_HEADER_PREFIX,
  };
}
