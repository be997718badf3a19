// A caller's visit to /usage, click by click. TOLLGATE_URL and TOLLGATE_KEY name the gateway and a funded key.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { SCHEMES, SCREENS, SHOTS, launch, sound, visitor } from './browser.mjs';

const { TOLLGATE_URL: url, TOLLGATE_KEY: key, TOLLGATE_ADMIN_URL: adminUrl, TOLLGATE_ADMIN_KEY: adminKey } = process.env;
const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
const SESSION = 'nightly-7';

async function own(path) {
  const answer = await fetch(`${url}/v1/tollgate/${path}`, { headers });
  assert.equal(answer.status, 200, path);
  return answer.json();
}

async function call(path, body, more = {}) {
  const answer = await fetch(`${url}${path}`, { method: 'POST', headers: { ...headers, ...more }, body: JSON.stringify(body) });
  assert.equal(answer.status, 200, await answer.clone().text());
  await answer.text();
  const number = answer.headers.get('x-request-id');
  for (let turn = 0; turn < 200; turn += 1) {
    if ((await fetch(`${url}/v1/tollgate/receipts/${number}`, { headers })).ok) return number;
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
  throw new Error(`${number} is not booked`);
}

const chat = (text, model = 'demo-chat') => ({ model, messages: [{ role: 'user', content: text }] });
const messages = (text) => ({ ...chat(text, 'demo-messages'), max_tokens: 100 });

async function opened(browser, options) {
  const visit = await visitor(browser, options);
  await visit.page.goto(`${url}/usage`);
  await visit.page.locator('#snippet').filter({ hasText: /./ }).waitFor();
  return visit;
}

async function typed(visit) {
  await visit.page.getByLabel(/^(Ключ|Key)$/).fill(key);
  await visit.page.getByRole('button', { name: /^(Показать|Show)$/ }).click();
  await visit.page.locator('#receipts tbody tr').first().waitFor();
}

describe('a caller visits the page of the key', () => {
  let browser;
  const numbers = [];

  before(async () => {
    browser = await launch();
    for (let n = 0; n < 15; n += 1) {
      const session = n % 3 === 0 ? { 'x-session-id': SESSION } : {};
      numbers.push(await call('/v1/chat/completions', chat('Привет '.repeat(n + 1)), session));
      numbers.push(await call('/v1/messages', messages('Привет '.repeat(20 * (n + 1))), { ...session, 'anthropic-version': '2023-06-01' }));
    }
  });
  after(() => browser.close());

  for (const screen of Object.keys(SCREENS)) {
    for (const scheme of SCHEMES) {
      it(`sees its money, its spending and its receipts: ${screen}, ${scheme}`, async () => {
        const visit = await opened(browser, { screen, scheme });
        await sound(visit, 'usage-empty');
        await typed(visit);
        const { page } = visit;
        const books = await own('key');
        const report = await own('usage');
        const plain = async (selector) => (await page.locator(selector).innerText()).replaceAll(/[\s\u00a0\u202f]/g, '');
        const shown = (rubles) => `${rubles.replace('.', ',')}₽`;
        assert.ok((await plain('#money')).includes(shown(books.free_rub)), books.free_rub);
        assert.ok((await plain('#spent')).startsWith(shown(report.total.charged_rub)), report.total.charged_rub);
        for (const { model, charged_rub: charged } of report.models) {
          const row = await plain(`#by-model tr:has(th:text-is("${model}"))`);
          assert.ok(row.includes(shown(charged)), `${model}: ${row}`);
        }
        assert.ok((await plain('#by-session')).includes(SESSION));
        assert.match(await page.locator('#by-day svg').first().getAttribute('aria-label'), /Расход по дням/);
        await page.locator('#by-day summary').click();
        await sound(visit, 'usage');
        await visit.context.close();
      });
    }
  }

  for (const screen of Object.keys(SCREENS)) {
    it(`sees its prices, including its own ones: ${screen}`, async () => {
      const visit = await opened(browser, { screen });
      const { page } = visit;
      const mine = [
        { input: '12345.678901', cached_input: '1.00', output: '2.00', cache_write: '3.00', version: 1, exchange_rate: '90', rule: 'acme', classes: { web_search_call: '0.95' } },
        { input: '24000.00', cached_input: '2.00', output: '4.00', cache_write: '6.00', version: 1, exchange_rate: '90', rule: 'acme', condition: { above_input_tokens: 272000, service_tier: 'flex' } },
      ];
      await page.route('**/v1/models', async (route) => {
        const list = await (await route.fetch()).json();
        list.data.find(({ id }) => id === 'demo-chat').prices = mine;
        await route.fulfill({ json: list });
      });
      await typed(visit);
      await page.locator('#prices-part summary').click();
      const rows = await page.locator('#prices tbody tr').allInnerTexts();
      const plain = (text) => text.replaceAll(/[\s\u00a0\u202f]/g, '');
      const [usual, long] = rows.map(plain).filter((row) => row.startsWith('demo-chat'));
      for (const part of ['12345,678901₽', 'поисквинтернете,заодин:0,95₽', 'ваша']) assert.ok(usual.includes(part), usual);
      for (const part of ['demo-chat·свыше272000токеноввхода,уровеньобслуживанияflex', '24000,00₽', 'ваша']) assert.ok(long.includes(part), long);
      const { models } = await own('models');
      const published = models.find(({ id }) => id === 'demo-messages');
      const other = rows.map(plain).find((row) => row.startsWith('demo-messages'));
      for (const part of [published.input_rub_mtok, published.output_rub_mtok]) assert.ok(other.includes(`${part.replace('.', ',')}₽`), other);
      assert.ok(other.includes('общая'), other);
      await sound(visit, 'usage-prices');
      await page.getByRole('button', { name: 'Забыть ключ' }).click();
      assert.equal(await page.locator('#prices').innerHTML(), '');
      await visit.context.close();
    });
  }

  it('shows how to set up a client in the language of the page', async () => {
    for (const [locale, begin] of [['ru-RU', 'Сохраните'], ['en-GB', 'Save']]) {
      const visit = await opened(browser, { locale });
      await visit.page.locator('#client').selectOption('claude-code');
      await visit.page.locator('#place').filter({ hasText: new RegExp(`^${begin} `) }).waitFor();
      await visit.context.close();
    }
  });

  it('sends a request again that exceeded a limit per second', async () => {
    const visit = await visitor(browser);
    const { page } = visit;
    let refused = 0;
    await page.route('**/connect', (route) => {
      refused += 1;
      return refused === 1 ? route.fulfill({ status: 429, headers: { 'retry-after': '1' }, json: { error: { message: 'too many' } } }) : route.continue();
    });
    await page.goto(`${url}/usage`);
    await page.locator('#snippet').filter({ hasText: /./ }).waitFor();
    assert.equal(refused, 2);
    assert.ok(await page.locator('#failed').isHidden());
    await page.unroute('**/connect');
    await page.route('**/connect', (route) => route.fulfill({ status: 429, headers: { 'retry-after': '60' }, json: { error: { message: 'too many' } } }));
    await page.reload();
    await page.getByRole('alert').filter({ hasText: 'too many' }).waitFor();
    await visit.context.close();
  });

  it('finds receipts by number, model and session, and goes on to older ones', async () => {
    const visit = await opened(browser);
    await typed(visit);
    const { page } = visit;
    const rows = page.locator('#receipts tbody tr');
    const shown = async () => Promise.all((await rows.all()).map((row) => row.locator('code').innerText()));
    const latest = (await own('receipts?limit=25')).receipts.map(({ number }) => number);
    assert.deepEqual(await shown(), latest);
    await page.getByRole('button', { name: 'Ещё' }).click();
    await page.waitForFunction(() => document.querySelectorAll('#receipts tbody tr').length > 25);
    assert.equal(new Set(await shown()).size, await rows.count(), 'none twice');
    const search = page.getByRole('button', { name: 'Найти' });
    const answered = () => page.waitForResponse((answer) => answer.url().includes('/receipts'));
    await page.getByLabel('Сессия').fill(SESSION);
    await page.getByLabel('Модель').selectOption('demo-chat');
    await Promise.all([answered(), search.click()]);
    await page.waitForFunction(() => document.querySelectorAll('#receipts tbody tr').length === 5);
    await page.getByLabel('Номер запроса').fill(numbers[3]);
    await Promise.all([answered(), search.click()]);
    await page.waitForFunction(() => document.querySelectorAll('#receipts tbody tr').length === 1);
    assert.deepEqual(await shown(), [numbers[3]]);
    await page.getByLabel('Номер запроса').fill('01a1f9e6-bc69-7767-a285-af3e6bb9c9ef');
    await Promise.all([answered(), search.click()]);
    await page.getByRole('alert').waitFor();
    await visit.context.close();
  });

  it('downloads the receipts as CSV', async () => {
    const visit = await opened(browser);
    await typed(visit);
    const [download] = await Promise.all([visit.page.waitForEvent('download'), visit.page.getByRole('button', { name: 'CSV' }).click()]);
    const [head, ...lines] = readFileSync(await download.path(), 'utf8').trim().split('\r\n');
    assert.equal(head, 'number,at,model,session,end,input,cached_input,cache_write,output,charged_rub');
    for (const number of numbers) assert.ok(lines.some((line) => line.startsWith(`${number},`)), number);
    await visit.context.close();
  });

  it('leaves no trace of the key outside of the page', async () => {
    const visit = await opened(browser);
    await typed(visit);
    const { page, context, requests } = visit;
    const kept = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, location.href, document.documentElement.outerHTML]));
    assert.ok(!kept.includes(key));
    assert.equal(await page.locator('#key').inputValue(), '');
    assert.deepEqual(await context.cookies(), []);
    for (const request of requests) {
      assert.ok(request.startsWith(`${url}/`), request);
      assert.ok(!request.includes(key), request);
    }
    await page.getByRole('button', { name: 'Забыть ключ' }).click();
    assert.ok(await page.locator('#report').isHidden());
    assert.equal(await page.locator('#receipts').innerHTML(), '');
    await page.reload();
    assert.ok(await page.locator('#report').isHidden());
    await context.close();
  });

  it('shows an error for an invalid key', async () => {
    const visit = await opened(browser, { locale: 'en-GB' });
    await visit.page.getByLabel('Key', { exact: true }).fill('tg-wrong');
    await visit.page.getByRole('button', { name: 'Show' }).click();
    await visit.page.getByRole('alert').waitFor();
    assert.ok(await visit.page.locator('#report').isHidden());
    await visit.context.close();
  });

  it('works by the keyboard alone', async () => {
    const visit = await opened(browser);
    const { page } = visit;
    for (let turn = 0; turn < 10 && (await page.evaluate(() => document.activeElement.id)) !== 'key'; turn += 1) await page.keyboard.press('Tab');
    await page.keyboard.type(key);
    await page.keyboard.press('Enter');
    await page.locator('#receipts tbody tr').first().waitFor();
    await visit.context.close();
  });

  it('shows names as text', async () => {
    const visit = await opened(browser);
    const { page } = visit;
    const evil = '<img src=x onerror=alert(1)>';
    await page.route('**/v1/tollgate/usage*', async (route) => {
      const report = await (await route.fetch()).json();
      report.models[0].model = evil;
      report.sessions[0].session = evil;
      await route.fulfill({ json: report });
    });
    await typed(visit);
    assert.equal(await page.locator('#report img').count(), 0);
    assert.ok((await page.locator('#by-model').innerText()).includes(evil));
    await visit.context.close();
  });

  it("shows the names of an owner's keys as text", async () => {
    const evil = '<img src=x onerror=alert(1)>';
    const admin = { authorization: `Bearer ${adminKey}`, 'content-type': 'application/json' };
    const keys = [];
    for (const wish of [{ name: evil, kind: 'owner' }, { name: evil, ceiling_rub: '1' }]) {
      const made = await fetch(`${adminUrl}/admin/v1/accounts/demo/keys`, { method: 'POST', headers: admin, body: JSON.stringify(wish) });
      keys.push((await made.json()).key);
    }
    const visit = await opened(browser);
    const { page } = visit;
    for (const shown of keys) {
      await page.getByLabel('Ключ', { exact: true }).fill(shown);
      await page.getByRole('button', { name: 'Показать' }).click();
      await page.locator('#money').filter({ hasText: evil }).waitFor();
      if (shown === keys[0]) {
        await page.locator('#keys tbody tr').filter({ hasText: evil }).first().waitFor();
        assert.ok((await page.locator('#key-chosen').innerText()).includes(evil));
      }
      assert.equal(await page.locator('main img').count(), 0);
    }
    assert.deepEqual(visit.complaints, []);
    await visit.context.close();
  });

  it('lists the addresses of the numbers without its script', async () => {
    const visit = await visitor(browser, { screen: 'phone', javaScriptEnabled: false });
    await visit.page.goto(`${url}/usage`);
    const said = visit.page.locator('noscript pre');
    await said.waitFor();
    assert.ok((await said.innerText()).includes('/v1/tollgate/receipts'));
    await visit.page.screenshot({ path: join(SHOTS, 'usage-without-script.png'), fullPage: true });
    assert.ok(await visit.page.locator('#ask').isHidden());
    await visit.context.close();
  });

  it('sees the ceilings of a key that has some', async () => {
    const admin = { authorization: `Bearer ${adminKey}`, 'content-type': 'application/json' };
    const made = await fetch(`${adminUrl}/admin/v1/accounts/demo/keys`, {
      method: 'POST', headers: admin, body: JSON.stringify({ name: 'limited', ceiling_rub: '100.00', ceiling_day_rub: '0.50' }),
    });
    const { key: limited } = await made.json();
    const visit = await opened(browser, { screen: 'phone' });
    await visit.page.getByLabel('Ключ', { exact: true }).fill(limited);
    await visit.page.getByRole('button', { name: 'Показать' }).click();
    await visit.page.locator('#ceilings tbody tr').first().waitFor();
    assert.equal(await visit.page.locator('#ceilings tbody tr').count(), 2);
    await sound(visit, 'usage-ceilings');
    await visit.context.close();
  });

  for (const screen of Object.keys(SCREENS)) {
    for (const scheme of SCHEMES) {
      it(`an owner manages the keys: ${screen}, ${scheme}`, async () => {
        const admin = { authorization: `Bearer ${adminKey}`, 'content-type': 'application/json' };
        const made = await fetch(`${adminUrl}/admin/v1/accounts/demo/keys`, {
          method: 'POST', headers: admin, body: JSON.stringify({ name: 'owner', kind: 'owner' }),
        });
        const { key: owner } = await made.json();
        const name = `ci-${screen}-${scheme}`;
        const visit = await opened(browser, { screen, scheme, locale: 'en-GB' });
        const { page } = visit;
        await page.locator('#key').fill(owner);
        await page.getByRole('button', { name: 'Show' }).click();
        await page.getByRole('heading', { name: 'Account keys' }).waitFor();
        await page.getByLabel('Name').fill(name);
        await page.getByLabel('Daily ceiling, ₽').fill('12,50');
        await page.getByRole('button', { name: 'Save' }).click();
        const secret = await page.locator('#made code').innerText();
        assert.match(secret, /^tg-/);
        await sound(visit, 'usage-owner');
        const ask = () => fetch(`${url}/v1/tollgate/key`, { headers: { authorization: `Bearer ${secret}` } });
        const shown = await (await ask()).json();
        assert.deepEqual([shown.name, shown.day.ceiling_rub], [name, '12.50']);
        await page.getByRole('button', { name: 'Disable' }).click();
        await page.getByRole('button', { name: 'Enable' }).waitFor();
        assert.equal((await ask()).status, 401);
        const remove = page.getByRole('button', { name: 'Delete forever' });
        page.once('dialog', (question) => question.dismiss());
        await remove.click();
        assert.ok(await remove.isVisible(), 'the key is kept until the question is answered');
        page.once('dialog', (question) => question.accept());
        await remove.click();
        await remove.waitFor({ state: 'hidden' });
        assert.equal((await ask()).status, 401);
        await visit.context.close();
      });
    }
  }
});
