// An operator's first day in the console, click by click. TOLLGATE_ADMIN_URL and TOLLGATE_ADMIN_KEY name the gateway.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, describe, it } from 'node:test';
import { SCHEMES, SCREENS, complained, launch, sound, visitor } from './browser.mjs';

const { TOLLGATE_URL: url, TOLLGATE_ADMIN_URL: admin, TOLLGATE_ADMIN_KEY: adminKey } = process.env;
const PLACES = ['Accounts', 'Payments', 'Calls', 'Usage', 'Vendors', 'Models and prices', 'Events', 'Changes', 'Audit', 'Operators', 'Overview'];

// As long as the session names that tools choose, without a position where a line could break.
const SESSION = 'session-019aab5c-8f0e-7d31-b0a4-2f6c3e5d7a91';

async function signedIn(browser, options) {
  const visit = await visitor(browser, { locale: 'en-GB', ...options });
  await visit.page.goto(`${admin}/`);
  await visit.page.getByLabel('Password or admin key').fill(adminKey);
  await visit.page.getByRole('button', { name: 'Sign in' }).click();
  await visit.page.getByRole('heading', { name: 'Overview' }).waitFor();
  return visit;
}

async function to(page, place) {
  await page.getByRole('navigation').getByRole('link', { name: place, exact: true }).click();
  await page.getByRole('heading', { name: place, exact: true, level: 1 }).waitFor();
}

/// A collapsed section with exactly this title.
const folded = (page, summary) => page.locator('details', { has: page.locator('summary', { hasText: new RegExp(`^${summary}$`) }) });

/// Opens a collapsed form, fills it in and sends it.
async function send(page, summary, fields, button) {
  const form = folded(page, summary);
  // After a refusal the form is open already.
  if (!(await form.evaluate((details) => details.open))) await form.locator('summary').click();
  for (const [label, value] of Object.entries(fields)) await form.getByLabel(label).fill(value);
  await form.getByRole('button', { name: button }).click();
}

/// The link to a call in the list, and the numbers of all calls that it shows.
const ofCall = (page, number) => page.locator(`tbody th a[href="/console/calls/${number}"]`);
const shownCalls = (page) => page.locator('tbody th a').evaluateAll((links) => links.map((link) => link.title));

async function call(key, text) {
  const answer = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json', 'x-session-id': SESSION },
    body: JSON.stringify({ model: 'demo-chat', messages: [{ role: 'user', content: text }] }),
  });
  assert.equal(answer.status, 200, await answer.clone().text());
  await answer.text();
  const number = answer.headers.get('x-request-id');
  // Half a minute, because machines that run tests are busy.
  for (let turn = 0; turn < 1200; turn += 1) {
    const found = await fetch(`${admin}/admin/v1/receipts/${number}`, { headers: { authorization: `Bearer ${adminKey}` } });
    if (found.ok) return number;
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
  throw new Error(`${number} is not booked`);
}

describe("an operator's first day", () => {
  let browser;
  before(async () => {
    browser = await launch();
  });
  after(() => browser.close());

  for (const screen of Object.keys(SCREENS)) {
    for (const scheme of SCHEMES) {
      it(`from signing in to the audit: ${screen}, ${scheme}`, async () => {
        const account = `acme-${screen}-${scheme}`;
        const outside = await visitor(browser, { screen, scheme, locale: 'en-GB' });
        await outside.page.goto(`${admin}/`);
        await sound(outside, 'console-sign-in');
        await outside.context.close();

        const visit = await signedIn(browser, { screen, scheme });
        const { page } = visit;
        await to(page, 'Accounts');
        await send(page, 'New account', { Id: account, Name: 'Acme & Co <LLC>' }, 'Create');
        await page.getByText('The account was created.').waitFor();
        await send(page, 'Top up', { 'Amount, ₽': '1000', 'Payment ID': `payment-${account}` }, 'Book the payment');
        await page.getByText('The payment is booked.').waitFor();
        await send(page, 'Correct the balance', { 'Amount, ₽ (negative reduces the balance)': '-1.50', Reason: 'a fee' }, 'Book the correction');
        await page.getByText('The correction is booked.').waitFor();
        const form = folded(page, 'New key');
        await form.locator('summary').click();
        await form.getByLabel('Name').fill('ci');
        await form.getByLabel('Daily ceiling, ₽').fill('25');
        await sound(visit, 'console-account');
        await form.getByRole('button', { name: 'Create' }).click();
        const secret = await page.locator('#secret').innerText();
        assert.match(secret, /^tg-/);
        await sound(visit, 'console-key-made');
        await page.getByRole('link', { name: 'Open the key’s page' }).click();
        // A click does not wait for the page that it opens.
        await page.waitForURL('**/console/keys/*');
        await page.getByRole('heading', { name: 'Limits' }).waitFor();
        assert.ok(!(await page.content()).includes(secret), 'it is shown once');

        const numbers = [];
        for (const text of ['One', 'Two, which is longer', 'Three']) numbers.push(await call(secret, text));
        await page.getByLabel('Requests per minute').fill('600');
        await page.getByRole('button', { name: 'Save' }).click();
        await page.getByText('Saved.').waitFor();
        assert.equal(await page.getByLabel('Requests per minute').inputValue(), '600');
        await sound(visit, 'console-key');

        await to(page, 'Calls');
        await ofCall(page, numbers[2]).waitFor();
        await page.getByLabel('Account', { exact: true }).fill(account);
        await page.getByRole('button', { name: 'Show' }).click();
        await page.waitForURL(/[?&]account=/);
        await ofCall(page, numbers[2]).waitFor();
        assert.deepEqual(await shownCalls(page), numbers.toReversed());
        await sound(visit, 'console-calls-found');
        const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('link', { name: 'Download as CSV' }).click()]);
        const lines = readFileSync(await download.path(), 'utf8').trimEnd().split('\r\n');
        assert.deepEqual(lines.slice(1).map((line) => line.split(',')[0]), numbers.toReversed());
        await ofCall(page, numbers[1]).click();
        await page.getByRole('heading', { name: `Call ${numbers[1]}` }).waitFor();
        await page.getByRole('heading', { name: 'How the charge was computed' }).waitFor();
        await sound(visit, 'console-call');

        await to(page, 'Usage');
        await page.getByLabel('Account').fill(account);
        await page.getByRole('button', { name: 'Show' }).click();
        await page.waitForURL(/[?&]account=/);
        // The `·` matters: before, the page showed the sum of all accounts, which probably had 33 calls.
        await page.getByText('· 3 calls').waitFor();
        await sound(visit, 'console-usage-summed');
        for (const place of PLACES) {
          await to(page, place);
          if (place === 'Audit') {
            await page.getByRole('button', { name: 'Run the audit' }).click();
            await page.getByText('The audit found no violations.').waitFor();
          }
          if (place === 'Overview') {
            await page.getByRole('img', { name: /^Call latency per hour/ }).waitFor();
            await page.locator('summary', { hasText: 'Table by hour' }).click();
            await page.locator('details[open] tbody tr').first().waitFor();
          }
          await sound(visit, `console-${place.toLowerCase().replaceAll(' ', '-')}`);
        }
        for (const request of visit.requests) assert.ok(request.startsWith(`${admin}/`), request);
        await page.getByRole('button', { name: 'Sign out', exact: true }).click();
        await page.getByRole('heading', { name: 'Sign in' }).waitFor();
        await page.goto(`${admin}/console/accounts`);
        await page.getByRole('heading', { name: 'Sign in' }).waitFor();
        await visit.context.close();
      });
    }
  }

  it('disables and enables a vendor, suspends an account and shows refusals', async () => {
    const visit = await signedIn(browser);
    const { page } = visit;
    await to(page, 'Vendors');
    await page.getByRole('button', { name: 'Disable scripted-messages', exact: true }).click();
    await page.getByText('The vendor is disabled.').waitFor();
    await to(page, 'Overview');
    await page.locator('main li', { hasText: 'disabled' }).waitFor();
    await to(page, 'Vendors');
    await page.getByRole('button', { name: 'Enable scripted-messages', exact: true }).click();
    await page.getByText('The vendor is enabled.').waitFor();
    await to(page, 'Accounts');
    await send(page, 'New account', { Id: 'no such id' }, 'Create');
    await page.getByRole('alert').waitFor();
    await complained(visit, 400);
    await sound(visit, 'console-refused');
    await to(page, 'Accounts');
    await send(page, 'New account', { Id: 'late-payer' }, 'Create');
    await page.getByText('The account was created.').waitFor();
    await send(page, 'Suspend', {}, 'Suspend');
    await page.getByText('The account is suspended.').waitFor();
    await visit.context.close();
  });

  for (const screen of Object.keys(SCREENS)) {
    it(`is in Russian for a Russian browser, and in English if that is chosen: ${screen}`, async () => {
      const visit = await visitor(browser, { screen, locale: 'ru-RU' });
      const { page } = visit;
      await page.goto(`${admin}/`);
      await page.getByLabel('Пароль или ключ администратора').fill(adminKey);
      await page.getByRole('button', { name: 'Войти' }).click();
      await page.getByRole('heading', { name: 'Обзор' }).waitFor();
      const places = ['Счета', 'Платежи', 'Запросы', 'Расход', 'Поставщики', 'Модели и цены', 'События', 'Изменения', 'Сверка', 'Операторы', 'Обзор'];
      for (const [at, place] of places.entries()) {
        await to(page, place);
        assert.equal(await page.locator('html').getAttribute('lang'), 'ru');
        await sound(visit, `console-ru-${PLACES[at].toLowerCase().replaceAll(' ', '-')}`);
      }
      await to(page, 'Счета');
      await page.getByRole('link', { name: 'demo', exact: true }).first().click();
      await page.getByRole('heading', { name: 'Счёт demo' }).waitFor();
      await sound(visit, 'console-ru-account');
      await to(page, 'Запросы');
      await page.locator('tbody th a').first().click();
      await page.getByRole('heading', { name: /^Запрос / }).waitFor();
      await sound(visit, 'console-ru-call');
      await page.getByRole('link', { name: 'English' }).click();
      await page.getByRole('heading', { name: /^Call / }).waitFor();
      await to(page, 'Accounts');
      await page.getByRole('link', { name: 'Русский' }).click();
      await page.getByRole('heading', { name: 'Счета' }).waitFor();
      await visit.context.close();
    });
  }

  it('shows live numbers of the node', async () => {
    const visit = await signedIn(browser, {});
    const charged = visit.page.locator('[data-live="calls"]');
    const before = Number(await charged.innerText());
    const made = await fetch(`${admin}/admin/v1/accounts/demo/keys`, {
      method: 'POST',
      headers: { authorization: `Bearer ${adminKey}`, 'content-type': 'application/json' },
      body: JSON.stringify({ name: 'live' }),
    });
    await call((await made.json()).key, 'One');
    await visit.page.waitForFunction((least) => Number(document.querySelector('[data-live="calls"]').textContent) > least, before);
    await visit.context.close();
  });

  /// Presses the tab key until the element has the focus.
  async function tabTo(page, place) {
    await place.waitFor();
    for (let turn = 0; turn < 120; turn += 1) {
      if (await place.evaluate((element) => element === element.ownerDocument.activeElement)) return;
      await page.keyboard.press('Tab');
    }
    throw new Error(`${place} cannot be reached by the keyboard`);
  }

  async function press(page, place) {
    await tabTo(page, place);
    await page.keyboard.press('Enter');
  }

  async function type(page, place, text) {
    await tabTo(page, place);
    await page.keyboard.type(text);
  }

  it('works without a script and by the keyboard', async () => {
    const visit = await visitor(browser, { screen: 'phone', javaScriptEnabled: false, locale: 'en-GB' });
    const { page } = visit;
    const nav = (name) => page.getByRole('navigation').getByRole('link', { name, exact: true });
    const form = (summary) => folded(page, summary);
    await page.goto(`${admin}/`);
    await type(page, page.getByLabel('Password or admin key'), adminKey);
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: 'Overview' }).waitFor();

    await press(page, nav('Accounts'));
    await press(page, form('New account').locator('summary'));
    await type(page, form('New account').getByLabel('Id'), 'by-hand');
    await type(page, form('New account').getByLabel('Name'), 'By hand');
    await page.keyboard.press('Enter');
    await page.getByText('The account was created.').waitFor();
    await press(page, form('Top up').locator('summary'));
    await type(page, form('Top up').getByLabel('Amount, ₽'), '250');
    await press(page, page.getByRole('button', { name: 'Book the payment' }));
    await page.getByText('The payment is booked.').waitFor();
    await press(page, form('New key').locator('summary'));
    await type(page, form('New key').getByLabel('Name'), 'by-hand');
    await press(page, form('New key').getByRole('button', { name: 'Create' }));
    const secret = await page.locator('#secret').innerText();
    const number = await call(secret, 'Once');

    await press(page, nav('Calls'));
    await type(page, page.getByLabel('Account', { exact: true }), 'by-hand');
    await page.keyboard.press('Enter');
    await page.waitForURL(/[?&]account=by-hand/);
    assert.deepEqual(await shownCalls(page), [number]);
    await press(page, ofCall(page, number));
    await page.getByRole('heading', { name: `Call ${number}` }).waitFor();
    await press(page, nav('Audit'));
    await press(page, page.getByRole('button', { name: 'Run the audit' }));
    await page.getByText('The audit found no violations.').waitFor();
    await visit.context.close();
  });

  it('refuses wrong credentials with a message', async () => {
    const visit = await visitor(browser, { locale: 'en-GB' });
    await visit.page.goto(`${admin}/console/accounts`);
    await visit.page.getByLabel('Name').fill('anna');
    await visit.page.getByLabel('Password or admin key').fill('a guess');
    await visit.page.getByRole('button', { name: 'Sign in' }).click();
    await visit.page.getByRole('alert').waitFor();
    assert.deepEqual(await visit.context.cookies(), []);
    await visit.context.close();
  });
});
