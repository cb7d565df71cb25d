import { isEmailFault } from '../../../lib/domain/messages.ts';
import type { SendResult } from '../../../lib/domain/send-result.ts';
import { mailOf } from '../../../lib/domain/transports/email.ts';
import type { Claim } from '../../../lib/store/claims.ts';
import type { AddressedDestination, EmailDestination } from '../endpoint-cache.ts';
import { type ChatOptions, sendChat } from './chat.ts';
import type { Mailer } from './mailer.ts';

/** The limits of one send; see `OutboundRequest`. */
export interface SendLimits {
  deadlineAt: number;
  connectTimeoutMs: number;
  idleTimeoutMs: number;
}

export interface TransportsOptions extends ChatOptions {
  /** Null: no mail server is configured. */
  mailer: Mailer | null;
}

/** The ways of sending that are not a request to the endpoint's own URL. Each makes a message and sends it; what comes before and after is one for all. */
export class Transports {
  readonly #options: TransportsOptions;

  constructor(options: TransportsOptions) {
    this.#options = options;
  }

  /** Never rejects. `busy`: there was no room for it within a moment, and nothing was begun. */
  send(
    destination: AddressedDestination,
    claim: Claim,
    payload: Buffer,
    limits: SendLimits,
  ): Promise<SendResult | 'busy'> {
    return destination.transport === 'email'
      ? this.#mail(destination, claim, payload, limits)
      : sendChat(this.#options, destination, claim, payload, limits);
  }

  async #mail(
    { address }: EmailDestination,
    { type, contentType, deliveryId }: Claim,
    payload: Buffer,
    limits: SendLimits,
  ): Promise<SendResult | 'busy'> {
    const { mailer } = this.#options;
    if (mailer === null) return unsent('other', 'no mail server is configured (RELAY_SMTP_URL)');
    const mail = mailOf({ type, contentType, payload, address });
    if (isEmailFault(mail))
      return unsent('refused', `the message cannot be sent: ${mail.field} ${mail.rule}`);
    return mailer.send({ ...mail, deliveryId }, limits);
  }
}

function unsent(failure: 'other' | 'refused', detail: string): SendResult {
  return { kind: 'failure', failure, detail, requestSent: false, durationMs: 0 };
}
