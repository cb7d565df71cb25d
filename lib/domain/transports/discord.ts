import type { ChatPlatform } from './chat-platform.ts';
import { numberAt, parsedBody } from './parsed-body.ts';

const UNKNOWN_WEBHOOK = 10_015;
const SUPPRESS_EMBEDS = 4;

/** Discord's Execute Webhook. The webhook's token is a part of the path. */
export const discord: ChatPlatform = {
  base: 'https://discord.com',
  address: /^discord:\/\/(\d{1,20})$/,
  addressRule: "must be discord:// and the webhook's id, such as discord://1234567890123456789",
  // Its letters would also spell a signing secret, which is never one.
  token: /^(?!whsec_)[\w-]{16,128}$/,
  tokenRule: "must be the webhook's token: 16 to 128 letters, digits, _ and -",
  hidden: (token) => token,
  // Without `wait` Discord answers before it has stored the message, and does not tell when it could not.
  path: (id, token) => `/api/webhooks/${id}/${token}?wait=true`,
  // A payload must not ring anybody, nor have Discord open links that were meant for one reader.
  body: (_, text) => ({ content: text, allowed_mentions: { parse: [] }, flags: SUPPRESS_EMBEDS }),
  // Code points, as its maintainers say (discord-api-docs, issue 1315).
  limit: { max: 2_000, sizeOf: () => 1 },
  read: (status, body) => {
    if (status === 404) {
      return numberAt(parsedBody(body), 'code') === UNKNOWN_WEBHOOK ? { meaning: 410 } : null;
    }
    if (status !== 429) return null;
    // With a fraction; the header is rounded.
    const seconds = numberAt(parsedBody(body), 'retry_after');
    return seconds === null ? null : { retryAfterSeconds: seconds };
  },
};
