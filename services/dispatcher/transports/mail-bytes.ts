import MailComposer from 'nodemailer/lib/mail-composer';
import type { SmtpConfig } from '../../../lib/config/smtp.ts';
import type { EmailMessage } from '../../../lib/domain/messages.ts';
import { messageId } from '../../../lib/domain/transports/email.ts';
import type { Envelope } from './smtp-session.ts';

export interface Mail extends EmailMessage {
  deliveryId: string;
}

/** A mail as it goes over the wire. Rejects when the library cannot print it. */
export async function mailBytes(
  { deliveryId, to, subject, text, html, headers }: Mail,
  { from, date }: { from: SmtpConfig['from']; date: Date },
): Promise<{ envelope: Envelope; bytes: Buffer }> {
  const node = new MailComposer({
    from,
    to,
    subject,
    headers,
    date,
    messageId: messageId(deliveryId, from.address),
    ...(text === '' ? {} : { text }),
    ...(html === '' ? {} : { html }),
    // A message is text, and nothing in it names a file or a page to be read in its place.
    disableFileAccess: true,
    disableUrlAccess: true,
    normalizeHeaderKey: (key: string) => key,
  }).compile();
  const bytes = await node.build();
  // With the names of hosts in the form that DNS takes.
  const { from: sender, to: recipients } = node.getEnvelope();
  return { envelope: { from: sender || from.address, to: recipients, size: bytes.length }, bytes };
}
