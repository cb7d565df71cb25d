/** Where the summary is shown. */
export interface ScreenOutput {
  write(text: string): unknown;
  isTTY?: boolean | undefined;
  columns?: number | undefined;
}

const ERASE_BELOW = '\x1b[0J';

/**
 * A terminal with lines that stay and, below them, one block that is drawn anew in place. On anything but a terminal blocks are not shown,
 * because there they would only pile up.
 */
export class Screen {
  readonly #output: ScreenOutput;
  #block: readonly string[] = [];

  constructor(output: ScreenOutput) {
    this.#output = output;
  }

  get isTerminal(): boolean {
    return this.#output.isTTY === true;
  }

  /** Lines that stay, above the block. */
  say(text: string): void {
    const line = text.endsWith('\n') ? text : `${text}\n`;
    this.#output.write(this.#eraseBlock() + line + this.#blockText());
  }

  /** Replaces the block. */
  show(lines: readonly string[]): void {
    if (!this.isTerminal) return;
    const erase = this.#eraseBlock();
    // A line that wraps would take two rows, and the next erase would leave one of them behind.
    const width = (this.#output.columns ?? 80) - 1;
    this.#block = lines.map((line) => (line.length > width ? line.slice(0, width) : line));
    this.#output.write(erase + this.#blockText());
  }

  /** Lets the block stand as it is: what is said from now on follows it. */
  leaveBlock(): void {
    this.#block = [];
  }

  #eraseBlock(): string {
    return this.#block.length === 0 ? '' : `\x1b[${this.#block.length}A\r${ERASE_BELOW}`;
  }

  #blockText(): string {
    return this.#block.map((line) => `${line}\n`).join('');
  }
}
