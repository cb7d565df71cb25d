import { decodeEmail, EMAIL_CONTENT_TYPE, type EmailFault, type EmailMessage } from '../messages.ts';
import { payloadText } from './text.ts';

/** What becomes a mail. */
export interface MailSource {
  type: string;
  contentType: string;
  payload: Buffer;
  /** Where an event goes; a finished message names its own recipients. */
  address: string;
}

/** A finished message as it is; any other event rendered for people. A fault when the payload says that it is a message and is none. */
export function mailOf({ type, contentType, payload, address }: MailSource): EmailMessage | EmailFault {
  if (mediaType(contentType) === EMAIL_CONTENT_TYPE) return decodeEmail(payload);
  return {
    to: [address],
    subject: type,
    html: '',
    text: `${type}\n\n${payloadText(payload, payload.length * 4 + ROOM_FOR_MARK)}`,
    // RFC 3834: nobody's holiday notice should answer it.
    headers: { 'Auto-Submitted': 'auto-generated' },
  };
}

const ROOM_FOR_MARK = 16;

function mediaType(contentType: string): string {
  return contentType.split(';', 1)[0]!.trim().toLowerCase();
}

/** The same on every attempt and replay, so that whoever gets a mail twice can tell. */
export function messageId(deliveryId: string, sender: string): string {
  return `<${deliveryId}@${sender.slice(sender.lastIndexOf('@') + 1)}>`;
}

/** The HTTP status that means what a mail server's reply code (RFC 5321) means. */
export function statusOfReply(code: number): number {
  if (code >= 200 && code <= 299) return 200;
  // The server is going away: its own trouble, not the recipient's.
  if (code === 421) return 503;
  return code >= 400 && code <= 499 ? 429 : 400;
}
