import { describe, expect, it } from 'vitest';
import { CHAT_PLATFORMS } from './chat-platform.ts';

const { telegram, discord, slack } = CHAT_PLATFORMS;
const addressIn = (platform: keyof typeof CHAT_PLATFORMS, url: string) =>
  CHAT_PLATFORMS[platform].address.exec(url)?.[1];

describe('telegram', () => {
  it('is told chat and text, and neither formats the text nor opens its links', () => {
    const chat = addressIn('telegram', 'telegram://-1001234')!;
    expect(telegram.path(chat, '12345:AA-token')).toBe('/bot12345:AA-token/sendMessage');
    expect(telegram.body(chat, '*x* <b>')).toEqual({
      chat_id: '-1001234',
      text: '*x* <b>',
      link_preview_options: { is_disabled: true },
    });
  });

  it('says in the body how long to wait, and where it does not the header decides', () => {
    const body = '{"ok":false,"error_code":429,"description":"…","parameters":{"retry_after":35}}';
    expect(telegram.read(429, body)).toEqual({ retryAfterSeconds: 35 });
    for (const other of [
      '',
      '{',
      'null',
      '{"parameters":null}',
      '{"parameters":{"retry_after":"35"}}',
      body.slice(0, -3),
    ])
      expect(telegram.read(429, other)).toBeNull();
    expect(telegram.read(200, body)).toBeNull();
  });

  it('answers a bot that was blocked by its status, which is final', () => {
    const body = '{"ok":false,"error_code":403,"description":"Forbidden: bot was blocked by the user"}';
    expect(telegram.read(403, body)).toBeNull();
  });

  it('hides what stands behind the colon of a token', () => {
    expect(telegram.hidden('12345:AA-token')).toBe('AA-token');
  });
});

describe('discord', () => {
  it('is told the text, rings nobody, and answers when the message is stored', () => {
    expect(discord.path('123', 'tok')).toBe('/api/webhooks/123/tok?wait=true');
    expect(discord.body('123', '@everyone')).toEqual({
      content: '@everyone',
      allowed_mentions: { parse: [] },
      flags: 4,
    });
  });

  it('says in the body how long to wait, with a fraction', () => {
    expect(discord.read(429, '{"message":"…","retry_after":0.65,"global":false}')).toEqual({
      retryAfterSeconds: 0.65,
    });
    expect(discord.read(429, '<html>you are being rate limited</html>')).toBeNull();
  });

  it('says of a webhook that was removed that it is gone, and of nothing else', () => {
    expect(discord.read(404, '{"message": "Unknown Webhook", "code": 10015}')).toEqual({ meaning: 410 });
    expect(discord.read(404, '{"message": "Unknown Channel", "code": 10003}')).toBeNull();
    expect(discord.read(404, 'not found')).toBeNull();
    expect(discord.read(200, '{"code": 10015}')).toBeNull();
  });
});

describe('slack', () => {
  it('is told the text escaped, so that it rings nobody, and opens no links', () => {
    expect(slack.path('T01/B02', 'tok')).toBe('/services/T01/B02/tok');
    expect(slack.body('', 'a & b <!channel> &amp;')).toEqual({
      text: 'a &amp; b &lt;!channel&gt; &amp;amp;',
      mrkdwn: false,
      unfurl_links: false,
      unfurl_media: false,
    });
  });

  it.each(['no_service', 'no_team', 'team_disabled', 'no_service\n'])(
    'says by %j that it is gone',
    (body) => {
      expect(slack.read(404, body)).toEqual({ meaning: 410 });
      expect(slack.read(200, body)).toBeNull();
      expect(slack.read(503, body)).toBeNull();
    },
  );

  it.each(['channel_not_found', 'action_prohibited', 'invalid_payload', 'rollup_error'])(
    'leaves %s to its status',
    (body) => {
      expect(slack.read(400, body)).toBeNull();
    },
  );
});
