/**
 * The tail of an event's id: `7`, three digits of its place in the batch, `8`, eleven random digits, `0000`. The statement puts the
 * milliseconds of the database's clock before it, which makes a version 7 uuid; ids of one batch rise strictly. 44 random bits,
 * the place and the millisecond make a collision a matter of the unique key.
 */
export function eventIdTail(place: number, randomHex11: string): string {
  return `7${(place & 0xfff).toString(16).padStart(3, '0')}8${randomHex11}0000`;
}

/** The id of an event's n-th delivery (1 to 65,535): the event's id with n in its last four digits. */
export function deliveryId(eventId: string, n: number): string {
  return eventId.slice(0, 32) + n.toString(16).padStart(4, '0');
}

/** The last id that a delivery of an event may have. */
export function lastDeliveryId(eventId: string): string {
  return `${eventId.slice(0, 32)}ffff`;
}

/** The event that a delivery is of. */
export function eventIdOf(delivery: string): string {
  return `${delivery.slice(0, 32)}0000`;
}
