// The comparison of pictures finds a moved, missing or recoloured element, and accepts another drawing of letters' edges.

import assert from 'node:assert/strict';
import { after, before, it } from 'node:test';
import { launch } from './browser.mjs';
import { difference } from './compare.mjs';

const page = ({ left = 40, color = '#0b6b53', more = '', text = 'Balance: 1 000,50 ₽' } = {}) => `<!doctype html>
<style>body { margin: 0; width: 600px; height: 2400px; font: 16px/1.5 "DejaVu Sans"; background: #fbfbf9; color: #1c1d1f; ${more} }
i { position: absolute; top: 1900px; left: ${left}px; width: 20px; height: 20px; background: ${color}; }</style>
<p>${text}</p><p>${'The same words on both pages. '.repeat(40)}</p><i></i>`;

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser.close());

async function picture(options, scale = 1) {
  const context = await browser.newContext({ viewport: { width: 600, height: 400 }, deviceScaleFactor: scale });
  const tab = await context.newPage();
  await tab.setContent(page(options));
  const shot = await tab.screenshot({ fullPage: true });
  await context.close();
  return shot;
}

it('finds what has changed on a page', async () => {
  const expected = await picture();
  assert.equal(difference(expected, await picture()).text, null);
  for (const [name, options] of [
    ['a box that moved by 8 pixels', { left: 48 }],
    ['a box that is gone', { color: 'transparent' }],
    ['a box of another color', { color: '#a3200d' }],
    ['larger text', { more: 'font-size: 17px' }],
    ['paler text', { more: 'color: #5f6368' }],
  ]) {
    assert.notEqual(difference(expected, await picture(options)).text, null, name);
  }
  const taller = difference(expected, await picture({ more: 'height: 2500px' }));
  assert.match(taller.text, /^is 600 × \d+ pixels, not 600 × \d+$/);
});

it('accepts letters whose edges are drawn differently', async () => {
  const expected = await picture();
  for (const more of ['text-rendering: geometricPrecision', 'text-indent: 0.3px', 'letter-spacing: 0.002px']) {
    const { text } = difference(expected, await picture({ more }));
    assert.equal(text, null, more);
  }
});
