import { z } from 'zod';

export type Env = Readonly<Record<string, string | undefined>>;

/** A setting that stops the process: the message is one sentence for each setting at fault. */
export class ConfigurationError extends Error {
  override readonly name = 'ConfigurationError';
}

/**
 * Parses an environment once, where it enters. Empty strings count as absent, since `FOO= command` is how a shell unsets.
 * Throws ConfigurationError naming each setting, its rule and the consequence of breaking it.
 */
export function parseEnv<S extends z.ZodType>(schema: S, env: Env): z.output<S> {
  const present = Object.fromEntries(
    Object.entries(env).filter(([, value]) => value !== undefined && value !== ''),
  );
  const parsed = schema.safeParse(present);
  if (parsed.success) return parsed.data;
  const sentences = parsed.error.issues.map((issue) => `${issue.path.join('.')}: ${issue.message}`);
  throw new ConfigurationError(sentences.join('; '));
}

const digits = z.string().regex(/^\d+$/, 'must be a whole number');

/** A whole number between `min` and `max`, both allowed. */
export function wholeNumber(range: { min: number; max: number; default: number }) {
  return digits
    .transform(Number)
    .refine((value) => value >= range.min && value <= range.max, {
      error: `must lie between ${range.min} and ${range.max}`,
    })
    .default(range.default);
}

/** Seconds in the environment, milliseconds in the program; at least one second. */
export function seconds(defaultSeconds: number, range: { min?: number; max?: number } = {}) {
  return wholeNumber({
    min: range.min ?? 1,
    max: range.max ?? 31_536_000,
    default: defaultSeconds,
  }).transform((value) => value * 1000);
}

const SWITCH: Readonly<Record<string, boolean>> = {
  true: true,
  '1': true,
  on: true,
  false: false,
  '0': false,
  off: false,
};

/** true/1/on or false/0/off; anything else is refused rather than taken for the default. */
export const onOffValue = z.string().transform((value, context): boolean => {
  const known = SWITCH[value.toLowerCase()];
  if (known === undefined) context.addIssue({ code: 'custom', message: 'must be true or false' });
  return known ?? false;
});

export function onOff(defaultValue: boolean) {
  return onOffValue.default(defaultValue);
}

export interface Bind {
  host: string;
  port: number;
}

/** `host:port`, `:port` or `port`; port 0 lets the system choose. */
export function bindAddress(defaultBind: string) {
  return z
    .string()
    .default(defaultBind)
    .transform((value, context): Bind => {
      const match = /^(?:(?:\[([^\]]+)\]|([^:]*)):)?(\d{1,5})$/.exec(value);
      const port = Number(match?.[3]);
      if (!match || port > 65_535) {
        context.addIssue({ code: 'custom', message: 'must be host:port, for example 127.0.0.1:8080' });
        return { host: '', port: 0 };
      }
      return { host: match[1] ?? (match[2] || '0.0.0.0'), port };
    });
}
