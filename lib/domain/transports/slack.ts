import type { ChatPlatform } from './chat-platform.ts';

/** What Slack answers, in plain text, when the webhook or its workspace will not come back. */
const GONE = new Set(['no_service', 'no_service_id', 'no_team', 'team_disabled']);
const ESCAPED: Readonly<Record<string, string>> = { '&': '&amp;', '<': '&lt;', '>': '&gt;' };

/** An incoming webhook of Slack. The last part of its path is the secret one. */
export const slack: ChatPlatform = {
  base: 'https://hooks.slack.com',
  address: /^slack:\/\/([TE][A-Z0-9]{1,31}\/B[A-Z0-9]{1,31})$/,
  addressRule:
    'must be slack:// and the first two parts behind /services/ in the webhook URL, such as slack://T01234567/B01234567',
  token: /^[A-Za-z0-9]{16,128}$/,
  tokenRule: 'must be the last part of the webhook URL: 16 to 128 letters and digits',
  hidden: (token) => token,
  path: (address, token) => `/services/${address}/${token}`,
  // Unescaped, `<!channel>` in a payload would ring everybody.
  body: (_, text) => ({ text: escaped(text), mrkdwn: false, unfurl_links: false, unfurl_media: false }),
  // What a block takes, and less than the 4,000 at which a message becomes two. Slack does not say what it counts: the escaped text in UTF-16
  // units is never less than whatever it is.
  limit: { max: 3_000, sizeOf: (character) => escaped(character).length },
  read: (status, body) => (status < 500 && status >= 400 && GONE.has(body.trim()) ? { meaning: 410 } : null),
};

function escaped(text: string): string {
  return text.replace(/[&<>]/g, (character) => ESCAPED[character]!);
}
