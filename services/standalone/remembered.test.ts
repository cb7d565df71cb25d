import { chmodSync, mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeEach, describe, expect, it } from 'vitest';
import { recallEndpoint, rememberEndpoint, rememberedSecret } from './remembered.ts';

const parent = mkdtempSync(join(tmpdir(), 'relay-remembered-'));
let directory: string;
let count = 0;

beforeEach(() => {
  directory = mkdtempSync(join(parent, 'data-'));
});
afterAll(() => rmSync(parent, { recursive: true, force: true }));

const make = () => `made ${++count}`;

describe('a remembered secret', () => {
  it('is made once and stays the same', () => {
    const first = rememberedSecret(directory, 'admin-key', make);
    expect(rememberedSecret(directory, 'admin-key', make)).toBe(first);
    expect(rememberedSecret(directory, 'another', make)).not.toBe(first);
  });

  it('is for its owner alone, also after somebody opened it to others', () => {
    rememberedSecret(directory, 'admin-key', make);
    chmodSync(join(directory, 'admin-key'), 0o644);
    rememberedSecret(directory, 'admin-key', make);
    expect(statSync(join(directory, 'admin-key')).mode & 0o777).toBe(0o600);
  });
});

describe('the remembered endpoint', () => {
  it('is none at first, and then the last one that was noted, in a private file', () => {
    expect(recallEndpoint(directory)).toBeNull();
    rememberEndpoint(directory, { id: 'a', secret: 'whsec_a' });
    rememberEndpoint(directory, { id: 'b', secret: 'whsec_b' });
    expect(recallEndpoint(directory)).toEqual({ id: 'b', secret: 'whsec_b' });
    const [file, ...others] = readdirSync(directory);
    expect(others).toEqual([]);
    expect(statSync(join(directory, file!)).mode & 0o777).toBe(0o600);
  });
});
