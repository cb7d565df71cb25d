import type { ChatTransport } from '../vocabulary.ts';
import { discord } from './discord.ts';
import { slack } from './slack.ts';
import { telegram } from './telegram.ts';

/** What Relay knows of a chat platform. No part of it judges whether, when or how often to send. */
export interface ChatPlatform {
  /** Where its API is. A path is put behind it. */
  base: string;
  /** The form of an endpoint's `url`. Its first group is the address. */
  address: RegExp;
  addressRule: string;
  /** The form of an endpoint's `secret`. */
  token: RegExp;
  tokenRule: string;
  /** The part of a token that nobody may see. */
  hidden: (token: string) => string;
  path: (address: string, token: string) => string;
  /** The request's body, as JSON. */
  body: (address: string, text: string) => object;
  limit: TextLimit;
  /** What an answer means; null where its status and headers say it. */
  read: (status: number, body: string) => Reading | null;
}

export interface TextLimit {
  /** The longest text that the platform takes, in its own measure. */
  max: number;
  /** What one code point of the payload counts in it. */
  sizeOf: (codePoint: string) => number;
}

/** What a platform's answer means, where HTTP alone does not tell. */
export interface Reading {
  /** The HTTP status that means the same. */
  meaning?: number;
  retryAfterSeconds?: number;
}

export const CHAT_PLATFORMS: Readonly<Record<ChatTransport, ChatPlatform>> = { telegram, discord, slack };
