// The pictures in README.md: the console and a receipt, in a gateway that has sold something. They are written to
// target/console, or to the folder in PICTURES, relative to the repository: PICTURES=docs/images.

import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { after, before, it } from 'node:test';
import { SHOTS, launch, sound, visitor } from './browser.mjs';

const { TOLLGATE_URL: url, TOLLGATE_ADMIN_URL: admin, TOLLGATE_ADMIN_KEY: adminKey, PICTURES } = process.env;
const FOLDER = PICTURES ? resolve(import.meta.dirname, '../..', PICTURES) : SHOTS;
const SCREEN = { width: 1440, height: 900 };
const KEYS = [
  { name: 'support-bot', ceiling_rub: '15000', ceiling_month_rub: '5000', calls: 9, words: 40 },
  { name: 'ci', ceiling_rub: '2000', ceiling_day_rub: '200', calls: 5, words: 12 },
  { name: 'nightly-reports', ceiling_rub: '1500', calls: 3, words: 160 },
];

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser.close());

async function ask(method, path, body) {
  const answer = await fetch(`${admin}/admin/v1/${path}`, {
    method,
    headers: { authorization: `Bearer ${adminKey}`, 'content-type': 'application/json' },
    body: body && JSON.stringify(body),
  });
  return answer.ok ? answer.json() : null;
}

async function call(key, words) {
  const answer = await fetch(`${url}/v1/messages`, {
    method: 'POST',
    headers: { 'x-api-key': key, 'anthropic-version': '2023-06-01', 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'demo-messages', max_tokens: 400, messages: [{ role: 'user', content: 'Summarise this. '.repeat(words) }] }),
  });
  assert.equal(answer.status, 200, await answer.text());
  return answer.headers.get('x-request-id');
}

async function picture(page, name, last) {
  const end = await page.locator(last).first().boundingBox();
  mkdirSync(FOLDER, { recursive: true });
  await page.screenshot({ path: join(FOLDER, `${name}.png`), fullPage: true, clip: { x: 0, y: 0, width: SCREEN.width, height: Math.floor(end.y) - 16 } });
}

it('shows an account with its keys, and a receipt', async () => {
  await ask('POST', 'accounts', { id: 'acme', name: 'Acme LLC' });
  await ask('POST', 'accounts/acme/topups', { id: 'payment-17', amount_rub: '25000' });
  let number;
  for (const { calls, words, ...limits } of KEYS) {
    const made = await ask('POST', 'accounts/acme/keys', limits);
    for (let turn = 0; turn < calls; turn += 1) number = await call(made.key, words + turn);
  }
  for (let turn = 0; (await ask('GET', `receipts/${number}`)) === null; turn += 1) {
    assert.ok(turn < 1200, `${number} is not booked`);
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
  const visit = await visitor(browser, { locale: 'en-GB', viewport: SCREEN });
  const { page } = visit;
  await page.goto(`${admin}/`);
  await page.getByLabel('Password or admin key').fill(adminKey);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
  await page.goto(`${admin}/console/accounts/acme`);
  await page.getByRole('link', { name: 'support-bot' }).or(page.getByText('support-bot')).first().waitFor();
  await sound(visit, 'picture-account');
  await picture(page, 'console', 'section[aria-labelledby="keys-title"] details');
  await page.goto(`${admin}/console/calls/${number}`);
  await page.getByRole('heading', { name: 'How the charge was computed' }).waitFor();
  await sound(visit, 'picture-receipt');
  await picture(page, 'receipt', 'main > details');
  await visit.context.close();
});
