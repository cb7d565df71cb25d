import type { ChatPlatform } from './chat-platform.ts';
import { numberAt, parsedBody } from './parsed-body.ts';

/** The Bot API's sendMessage. The bot's token is a part of the path. */
export const telegram: ChatPlatform = {
  base: 'https://api.telegram.org',
  address: /^telegram:\/\/(-?[1-9]\d{0,18}|@[A-Za-z]\w{3,31})$/,
  addressRule: 'must be telegram:// and a chat id or @name, such as telegram://-1001234567890',
  token: /^\d{3,20}:[\w-]{16,128}$/,
  tokenRule: "must be the bot's token: digits, a colon, and 16 to 128 letters, digits, _ and -",
  // Before the colon stands the bot's id, which everybody in the chat can see.
  hidden: (token) => token.slice(token.indexOf(':') + 1),
  path: (_, token) => `/bot${token}/sendMessage`,
  // Without parse_mode the text is shown as it is. A preview would have Telegram open links that were meant for one reader.
  body: (chat, text) => ({ chat_id: chat, text, link_preview_options: { is_disabled: true } }),
  // Code points: 4,096 of them outside the BMP are taken, one more is "message is too long".
  limit: { max: 4_096, sizeOf: () => 1 },
  read: (status, body) => {
    if (status !== 429) return null;
    const seconds = numberAt(parsedBody(body), 'parameters', 'retry_after');
    return seconds === null ? null : { retryAfterSeconds: seconds };
  },
};
