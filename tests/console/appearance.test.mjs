// The main pages look as in tests/console/pictures: at the widths of a phone and of a desktop, light and dark, in
// Russian and English. TOLLGATE_BIN is the gateway's binary. If a page differs, the expected picture, the actual one and
// the difference are written to target/console/appearance. To replace the stored pictures:
// APPEARANCE=write TOLLGATE_BIN=$PWD/target/debug/tollgate node --test tests/console/appearance.test.mjs

import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { SHOTS, launch, visitor } from './browser.mjs';
import { difference } from './compare.mjs';
import { ADMIN_KEY, ask, config, leftovers, places, start } from './gateway.mjs';
import { mailbox } from './mailbox.mjs';

const STORED = join(import.meta.dirname, 'pictures');
const OUT = join(SHOTS, 'appearance');
const WRITES = process.env.APPEARANCE === 'write';
const BYTES_MAX = 3_000_000;
/// Each page is in two pictures, which have both widths, both themes and both languages.
const VISITS = [
  { screen: 'desk', scheme: 'light', locale: 'en-GB', pages: ['overview', 'calls', 'prices', 'cabinet-spending', 'usage'] },
  { screen: 'phone', scheme: 'dark', locale: 'ru-RU', pages: ['overview', 'calls', 'prices', 'cabinet-spending', 'usage'] },
  { screen: 'desk', scheme: 'dark', locale: 'ru-RU', pages: ['account', 'call', 'cabinet', 'cabinet-payments'] },
  { screen: 'phone', scheme: 'light', locale: 'en-GB', pages: ['account', 'call', 'cabinet', 'cabinet-payments'] },
];
const FONTS = '* { font-family: "DejaVu Sans" !important } code, pre, kbd { font-family: "DejaVu Sans Mono" !important }';

/// Replaces what differs between two runs by fixed texts and shapes: numbers of calls, keys, times, durations, addresses,
/// bars of charts. It runs in the page.
function normalize() {
  const rules = [
    [/[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}/g, '01a1f9e6-bc69-7767-a285-af3e6bb9c9ef'],
    [/[0-9a-f]{8}…/g, '01a1f9e6…'],
    [/…[0-9a-f]{6,}/g, '…6bb9c9ef'],
    [/console-[0-9a-f]{16}/g, 'console-0123456789abcdef'],
    [/tg-[\w-]{4,}/g, 'tg-A1b2C3d4'],
    [/\bk[0-9A-Za-z]{15}\b/g, 'k4M5LolkJ6SXWExj'],
    [/127\.0\.0\.1:\d+/g, '127.0.0.1:8080'],
    [/\d{4}-\d{2}-\d{2}T[\d:.]+Z/g, '2026-11-20T10:15:00Z'],
    [/\d{4}-\d{2}-\d{2}/g, '2026-11-20'],
    [/\d{4}-\d{2}(?!\d|-)/g, '2026-11'],
    [/\d{1,2}\.\d{2}\.\d{4}/g, '20.11.2026'],
    [/\d{2}:\d{2}(:\d{2})?(\.\d+)?/g, (all) => '10:15:00'.slice(0, Math.min(all.length, 8))],
    [/\d{1,2}\s(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*/g, '20 Nov'],
    [/(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\s20\d{2}/g, 'Nov 2026'],
    [/(янв|фев|мар|апр|ма[йя]|июн|июл|авг|сен|окт|ноя|дек)[а-я]*\.?\s20\d{2}/g, 'ноябрь 2026'],
    [/\d{1,2}\s(янв|фев|мар|апр|ма[йя]|июн|июл|авг|сен|окт|ноя|дек)[а-я]*\.?/g, (all) => (all.endsWith('.') ? '20 нояб.' : '20 ноября')],
    [/\d[\d,.\u00a0\u202f]*(?=\s(ms|мс)(?![a-zа-я]))/g, '12'],
  ];
  const fixed = (text) => rules.reduce((rest, [what, by]) => rest.replace(what, by), text);
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = fixed(walker.currentNode.data);
    if (text !== walker.currentNode.data) walker.currentNode.data = text;
  }
  for (const field of document.querySelectorAll('input, textarea')) field.value = fixed(field.value);
  for (const chart of document.querySelectorAll('figure.chart')) {
    chart.querySelectorAll('.plot rect:not(.room)').forEach((bar, place) => {
      const height = 40 + 10 * (place % 2);
      bar.setAttribute('y', 102 - height);
      bar.setAttribute('height', height);
    });
    if (!/, (ms|мс)$/.test(chart.querySelector('h3').textContent)) continue;
    chart.querySelectorAll('.scale span').forEach((label, place) => { label.textContent = ['40', '20', '0'][place]; });
  }
  for (const table of document.querySelectorAll('table')) {
    [...table.querySelectorAll('thead th')].forEach((head, column) => {
      if (!/, (ms|мс)$/.test(head.textContent)) return;
      for (const row of table.tBodies[0].rows) row.cells[column].textContent = '12';
    });
    for (const bar of table.querySelectorAll('.span rect')) {
      bar.setAttribute('x', '0');
      bar.setAttribute('width', '50%');
    }
  }
  // Keys are listed by their random ids, and calls of the same millisecond in any order.
  for (const body of document.querySelectorAll('tbody')) {
    const rows = [...body.rows].sort((one, other) => (one.textContent < other.textContent ? -1 : 1));
    body.append(...rows);
  }
}

const COMPLETION = JSON.stringify({
  id: 'c', object: 'chat.completion', created: 0, model: 'm',
  choices: [{ index: 0, message: { role: 'assistant', content: 'Hello' }, finish_reason: 'stop' }],
  usage: { prompt_tokens: 282, completion_tokens: 40, total_tokens: 322 },
});

describe('the main pages', () => {
  let browser;
  let at;
  let key;
  let number;
  let addresses = 0;
  const box = mailbox();
  const left = leftovers();

  before(async () => {
    const vendor = createServer(async (req, res) => {
      for await (const _ of req);
      res.writeHead(200, { 'content-type': 'application/json' }).end(COMPLETION);
    });
    await new Promise((resolve) => vendor.listen(0, '127.0.0.1', resolve));
    await new Promise((resolve) => box.server.listen(0, '127.0.0.1', resolve));
    left.add(() => box.server.close());
    left.add(() => vendor.close());
    at = await places();
    const more = `[cabinet]
server = "smtp://127.0.0.1:${box.server.address().port}"
from = "Tollgate <noreply@example.com>"
[seller]
name = "ООО «Продавец»"
inn = "7701234567"
bank = "ПАО «Банк»"
bik = "044500001"
bank_account = "40702810900000000001"
correspondent_account = "30101810000000000001"
[payments]
on_page = true
[payments.yookassa]
shop_id = "100500"
secret_key = "\${SHOP_SECRET}"
return_url = "${at.url}/cabinet/payments"
url = "http://127.0.0.1:9/v3"`;
    const text = config(at, { more, vendor: `http://127.0.0.1:${vendor.address().port}/v1` });
    await start(at, `trusted_proxies = ["127.0.0.1"]\n${text}`, left, { SHOP_SECRET: 'x' });
    await ask(at, 'POST', 'accounts', { id: 'acme', name: 'ООО «Акме»' });
    await ask(at, 'POST', 'accounts', { id: 'beta', name: 'Beta Ltd' });
    await ask(at, 'POST', 'accounts/acme/topups', { id: 'acme-20261120-2500000', amount_rub: '25000' });
    await ask(at, 'POST', 'accounts/acme/adjustments', { id: 'c-1', amount_rub: '-12.5', reason: 'Возврат по письму' });
    await ask(at, 'POST', 'accounts/acme/members', { mail: 'owner@acme.example', role: 'owner' });
    const keys = [];
    for (const limits of [{ name: 'support-bot', ceiling_rub: '15000', ceiling_month_rub: '5000' }, { name: 'ci', ceiling_day_rub: '200' }]) {
      keys.push(await ask(at, 'POST', 'accounts/acme/keys', limits));
    }
    key = keys[0].key;
    const call = (secret, model) => fetch(`${at.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${secret}`, 'content-type': 'application/json', 'x-session-id': 'nightly-7' },
      body: JSON.stringify({ model, messages: [{ role: 'user', content: 'Hello' }] }),
    });
    for (const secret of [key, key, keys[1].key, key]) {
      const answer = await call(secret, 'm');
      assert.equal(answer.status, 200, await answer.text());
      number = answer.headers.get('x-request-id');
    }
    await (await call(key, 'no-such-model')).text();
    for (let turn = 0; !(await fetch(`${at.url}/v1/tollgate/receipts/${number}`, { headers: { authorization: `Bearer ${key}` } })).ok; turn += 1) {
      assert.ok(turn < 1200, `${number} is not booked`);
      await new Promise((resolve) => setTimeout(resolve, 25));
    }
    browser = await launch();
    left.add(() => browser.close());
    mkdirSync(STORED, { recursive: true });
    rmSync(OUT, { recursive: true, force: true });
  });
  after(left.clear);

  async function signedIn({ pages, ...options }) {
    // The fonts are set by a style that the page's policy forbids. Each visitor has an address of its own.
    addresses += 1;
    const visit = await visitor(browser, { ...options, bypassCSP: true, reducedMotion: 'reduce', extraHTTPHeaders: { 'x-forwarded-for': `192.0.2.${addresses}` } });
    const { page } = visit;
    await page.goto(`${at.admin}/`);
    await page.locator('input[type=password]').fill(ADMIN_KEY);
    await page.locator('main button').first().click();
    await page.locator('nav').waitFor();
    await page.goto(`${at.url}/cabinet/sign-in`);
    const count = box.mails.length;
    await page.locator('input[name=mail]').fill('owner@acme.example');
    await page.locator('main button').first().click();
    await page.goto(await box.next(count + 1));
    await page.locator('main button').first().click();
    await page.locator('nav').waitFor();
    return visit;
  }

  async function open(page, name) {
    const path = {
      overview: `${at.admin}/`,
      account: `${at.admin}/console/accounts/acme`,
      calls: `${at.admin}/console/calls`,
      call: `${at.admin}/console/calls/${number}`,
      prices: `${at.admin}/console/prices`,
      cabinet: `${at.url}/cabinet`,
      'cabinet-spending': `${at.url}/cabinet/spending`,
      'cabinet-payments': `${at.url}/cabinet/payments`,
      usage: `${at.url}/usage`,
    }[name];
    // The overview's script refreshes its numbers.
    await page.route('**/live.js', (route) => route.abort());
    await page.goto(path);
    await page.waitForLoadState('load');
    if (name === 'usage') {
      await page.locator('input[type=password], #key').first().fill(key);
      await page.getByRole('button', { name: /^(Показать|Show)$/ }).click();
      await page.locator('#receipts tbody tr').first().waitFor();
    }
    await page.addStyleTag({ content: FONTS });
    await page.evaluate(normalize);
  }

  for (const visitOf of VISITS) {
    const variant = `${visitOf.screen}-${visitOf.scheme}-${visitOf.locale.slice(0, 2)}`;
    it(`look as they did: ${variant}`, async () => {
      const { page, context } = await signedIn(visitOf);
      const found = [];
      for (const name of visitOf.pages) {
        await open(page, name);
        const actual = await page.screenshot({ fullPage: true, animations: 'disabled', caret: 'hide' });
        const file = `${name}-${variant}.png`;
        if (WRITES) {
          writeFileSync(join(STORED, file), actual);
          continue;
        }
        if (!existsSync(join(STORED, file))) {
          found.push(`${file}: no picture is stored`);
          continue;
        }
        const expected = readFileSync(join(STORED, file));
        const { text, picture } = difference(expected, actual);
        if (text === null) continue;
        mkdirSync(OUT, { recursive: true });
        for (const [kind, bytes] of Object.entries({ expected, actual, difference: picture })) {
          writeFileSync(join(OUT, `${name}-${variant}-${kind}.png`), bytes);
        }
        found.push(`${file}: ${text}`);
      }
      await context.close();
      assert.deepEqual(found, [], `compare the pictures in ${OUT}; if the change is wanted, run with APPEARANCE=write`);
    });
  }

  it('are few enough pictures for the repository, one for each page', () => {
    const files = readdirSync(STORED);
    assert.equal(files.length, VISITS.flatMap(({ pages }) => pages).length, 'delete pictures of pages that are gone');
    const bytes = files.map((file) => statSync(join(STORED, file)).size).reduce((sum, size) => sum + size, 0);
    assert.ok(bytes <= BYTES_MAX, `${bytes} bytes`);
  });
});
