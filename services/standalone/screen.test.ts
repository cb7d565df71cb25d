import { describe, expect, it } from 'vitest';
import { Screen } from './screen.ts';

/** A terminal of so many columns that really moves its cursor, as far as a screen uses it. */
function terminal(columns: number) {
  const rows: string[] = [''];
  return {
    isTTY: true,
    columns,
    rows,
    write(text: string) {
      const shown = text.replaceAll('\x1b', '§');
      for (const [, control, up, plain] of shown.matchAll(/(§\[(?:(\d+)A|0J)|\r|\n)|([^§\r\n]+)/g)) {
        if (plain !== undefined) rows[rows.length - 1] += plain;
        else if (control === '\n') rows.push('');
        else if (up !== undefined) rows.splice(rows.length - 1 - Number(up), Number(up) + 1, '');
      }
      return true;
    },
  };
}

describe('a screen on a terminal', () => {
  it('draws its block in place, and lets lines stay above it', () => {
    const output = terminal(40);
    const screen = new Screen(output);
    screen.say('first');
    screen.show(['one', 'two']);
    screen.say('second\n');
    screen.show(['one again', 'two', 'three']);
    expect(output.rows).toEqual(['first', 'second', 'one again', 'two', 'three', '']);
  });

  it('cuts what would wrap, since a wrapped line could not be erased', () => {
    const output = terminal(10);
    const screen = new Screen(output);
    screen.show(['0123456789abc']);
    screen.show(['short']);
    screen.show(['0123456789abc']);
    expect(output.rows).toEqual(['012345678', '']);
  });

  it('leaves its last block standing for good', () => {
    const output = terminal(40);
    const screen = new Screen(output);
    screen.show(['status']);
    screen.leaveBlock();
    screen.say('stopping');
    expect(output.rows).toEqual(['status', 'stopping', '']);
  });
});

describe('a screen on a pipe', () => {
  it('shows lines and no block, and no control characters', () => {
    let written = '';
    const screen = new Screen({
      write: (text) => {
        written += text;
      },
    });
    screen.say('line');
    screen.show(['block']);
    screen.say('line');
    expect(written).toBe('line\nline\n');
  });
});
