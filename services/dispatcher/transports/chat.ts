import type { SendResult } from '../../../lib/domain/send-result.ts';
import { CHAT_PLATFORMS, type ChatPlatform } from '../../../lib/domain/transports/chat-platform.ts';
import { redacted } from '../../../lib/domain/transports/redact.ts';
import { renderText } from '../../../lib/domain/transports/text.ts';
import type { ChatTransport } from '../../../lib/domain/vocabulary.ts';
import type { Claim } from '../../../lib/store/claims.ts';
import type { ChatDestination } from '../endpoint-cache.ts';
import type { Sender } from '../sending/sender.ts';
import type { SendLimits } from './transports.ts';

export interface ChatOptions {
  sender: Sender;
  userAgent: string;
  /** Where the APIs of the platforms are instead of where they are: a test's stand-ins. */
  bases?: Partial<Record<ChatTransport, string>>;
}

/** Posts an event to a chat. Never rejects. The URL with the token in it is made here and nowhere kept. */
export async function sendChat(
  { sender, userAgent, bases }: ChatOptions,
  { transport, address, token: key }: ChatDestination,
  claim: Claim,
  payload: Buffer,
  limits: SendLimits,
): Promise<SendResult> {
  const platform = CHAT_PLATFORMS[transport];
  const token = key.export().toString();
  const text = renderText(claim.type, payload, platform.limit);
  const result = await sender.send({
    url: new URL((bases?.[transport] ?? platform.base) + platform.path(address, token)),
    headers: ['content-type', 'application/json', 'user-agent', userAgent],
    body: Buffer.from(JSON.stringify(platform.body(address, text))),
    ...limits,
  });
  return readAnswer(platform, token, result);
}

/** What the platform said, in the words that the retry policy understands, and without the token. */
function readAnswer(platform: ChatPlatform, token: string, result: SendResult): SendResult {
  const hidden = platform.hidden(token);
  if (result.kind === 'failure') return { ...result, detail: redacted(result.detail, hidden) };
  const reading =
    result.status === null ? null : platform.read(result.status, result.snippet.toString('utf8'));
  return {
    ...result,
    snippet: Buffer.from(redacted(result.snippet.toString('latin1'), hidden), 'latin1'),
    ...(reading?.meaning === undefined ? {} : { meaning: reading.meaning }),
    ...(reading?.retryAfterSeconds === undefined
      ? {}
      : { retryAfter: [reading.retryAfterSeconds.toFixed(3)] }),
  };
}
