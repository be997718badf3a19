// Members of an account in the cabinet: sign-in by a mailed link, every page in both languages, and calls in the
// playground. A small mail server stores the mails. TOLLGATE_BIN is the gateway's binary.

import assert from 'node:assert/strict';
import { createServer as createHttp } from 'node:http';
import { after, before, describe, it } from 'node:test';
import { SCHEMES, SCREENS, complained, launch, sound, visitor } from './browser.mjs';
import { accountWithKey, ask, config, leftovers, places, start } from './gateway.mjs';
import { mailbox } from './mailbox.mjs';

const VISITS = Object.keys(SCREENS).flatMap((screen) => SCHEMES.map((scheme) => ({ screen, scheme })));
const COMPLETION = JSON.stringify({
  id: 'c', object: 'chat.completion', created: 0, model: 'm',
  choices: [{ index: 0, message: { role: 'assistant', content: 'Hello' }, finish_reason: 'stop' }],
  usage: { prompt_tokens: 282, completion_tokens: 40, total_tokens: 322 },
});

/// The text of the model's response to a streamed call.
const MARKUP = '<img src=x onerror="alert(1)"> & <script>alert(2)</script>';
const CHUNKS = [
  ...MARKUP.match(/.{1,9}/g).map((content) => ({ choices: [{ index: 0, delta: { content }, finish_reason: null }] })),
  { choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] },
  { choices: [], usage: { prompt_tokens: 282, completion_tokens: 40, total_tokens: 322 } },
].map((chunk) => JSON.stringify({ id: 'c', object: 'chat.completion.chunk', created: 0, model: 'm', ...chunk }));
const STREAM = [...CHUNKS, '[DONE]'].map((data) => `data: ${data}\n\n`).join('');

describe('members of an account in the cabinet', () => {
  let browser;
  let at;
  let number;
  let addresses = 0;
  const box = mailbox();
  const left = leftovers();

  before(async () => {
    await new Promise((resolve) => box.server.listen(0, '127.0.0.1', resolve));
    const vendor = createHttp(async (req, res) => {
      let body = '';
      for await (const piece of req) body += piece;
      const [kind, answer] = JSON.parse(body).stream ? ['text/event-stream', STREAM] : ['application/json', COMPLETION];
      res.writeHead(200, { 'content-type': kind }).end(answer);
    });
    await new Promise((resolve) => vendor.listen(0, '127.0.0.1', resolve));
    left.add(() => box.server.close());
    left.add(() => vendor.close());
    at = await places();
    const more = `[cabinet]
server = "smtp://127.0.0.1:${box.server.address().port}"
from = "Tollgate <noreply@example.com>"
terms_url = "https://shop.example/terms"
[seller]
name = "ООО «Продавец»"
inn = "7701234567"
contact = "help@seller.example"
[payments]
on_page = true
[payments.yookassa]
shop_id = "100500"
secret_key = "\${SHOP_SECRET}"
return_url = "${at.url}/cabinet/payments"
url = "http://127.0.0.1:9/v3"`;
    await start(at, `trusted_proxies = ["127.0.0.1"]\n${config(at, { more, vendor: `http://127.0.0.1:${vendor.address().port}/v1` })}`, left, { SHOP_SECRET: 'x' });
    const { key } = await accountWithKey(at);
    await ask(at, 'PATCH', 'accounts/acme', { name: 'ООО «Акме»' });
    for (const { screen, scheme } of VISITS) {
      for (const role of ['owner', 'finance', 'developer']) {
        await ask(at, 'POST', 'accounts/acme/members', { mail: `${role}-${screen}-${scheme}@acme.example`, role });
      }
    }
    const call = (model) => fetch(`${at.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify({ model, messages: [{ role: 'user', content: 'Hello' }] }),
    });
    const answer = await call('m');
    assert.equal(answer.status, 200, await answer.text());
    number = answer.headers.get('x-request-id');
    await (await call('no-such-model')).text();
    await ask(at, 'POST', 'accounts', { id: 'poor', name: 'Новый клиент' });
    browser = await launch();
    left.add(() => browser.close());
  });
  after(left.clear);

  /// Signs in by the link in a mail; the words are those of the language.
  async function signedIn(mail, options, [label, send, enter, heading]) {
    // Each visitor has an address: one address gets ten links in 15 minutes.
    addresses += 1;
    const extraHTTPHeaders = { 'x-forwarded-for': `192.0.2.${addresses}` };
    const visit = await visitor(browser, { extraHTTPHeaders, ...options });
    const { page } = visit;
    await page.goto(`${at.url}/cabinet`);
    await page.getByLabel(label).waitFor();
    await sound(visit, 'cabinet-sign-in');
    const count = box.mails.length;
    await page.getByLabel(label).fill(mail);
    await page.getByRole('button', { name: send }).click();
    await page.getByText(mail).waitFor();
    await sound(visit, 'cabinet-sent');
    await page.goto(await box.next(count + 1));
    await page.getByRole('button', { name: enter }).click();
    await page.getByRole('heading', { name: heading, level: 1 }).waitFor();
    return visit;
  }
  const RUSSIAN = ['Почта', 'Отправить ссылку для входа', 'Войти', 'ООО «Акме»'];
  const ENGLISH = ['Email address', 'Send the sign-in link', 'Sign in', 'ООО «Акме»'];

  for (const { screen, scheme } of VISITS) {
    it(`owner sees every page in Russian: ${screen}, ${scheme}`, async () => {
      const visit = await signedIn(`owner-${screen}-${scheme}@acme.example`, { screen, scheme }, RUSSIAN);
      const { page } = visit;
      await page.getByText('Баланс', { exact: true }).waitFor();
      await sound(visit, 'cabinet-overview');
      for (const [name, path, text] of [
        ['Расходы', 'spending', 'По ключам'],
        ['Запросы', 'calls', 'Такой модели нет. Сверьте название с прайс-листом.'],
        ['Ключи', 'keys', 'Новый ключ'],
        ['Песочница', 'playground', 'Наибольшая длина ответа, токены'],
        ['Платежи', 'payments', 'Пополнить баланс'],
        ['Выписки', 'statements', 'Баланс на конец'],
        ['Участники', 'members', 'Владелец может всё, в том числе управлять участниками.'],
      ]) {
        await page.getByRole('navigation').getByRole('link', { name, exact: true }).click();
        await page.waitForURL(`**/cabinet/${path}`);
        await page.getByText(text).first().waitFor();
        await sound(visit, `cabinet-${path}`);
      }
      await page.goto(`${at.url}/cabinet/calls/${number}`);
      await page.locator('p.sum', { hasText: '282 × 103,50 ₽/млн + 40 × 103,50 ₽/млн = 0,03 ₽' }).waitFor();
      await sound(visit, 'cabinet-call');

      await page.goto(`${at.url}/cabinet/statements`);
      const download = page.waitForEvent('download');
      await page.getByRole('link', { name: 'PDF' }).click();
      assert.match((await download).suggestedFilename(), /^acme-\d{4}-\d{2}\.pdf$/);

      await page.getByRole('button', { name: 'Выйти', exact: true }).click();
      await page.waitForURL('**/cabinet/sign-in');
      await visit.context.close();
    });

    it(`developer makes and deletes a key in English: ${screen}, ${scheme}`, async () => {
      const mail = `developer-${screen}-${scheme}@acme.example`;
      const visit = await signedIn(mail, { screen, scheme, locale: 'en-GB' }, ENGLISH);
      const { page } = visit;
      const links = await page.getByRole('navigation').getByRole('link').allInnerTexts();
      assert.deepEqual(links, ['Overview', 'Spending', 'Calls', 'Keys', 'Playground']);
      await page.getByRole('link', { name: 'Keys' }).click();
      await page.getByLabel('Name').fill(`ci-${screen}-${scheme}`);
      await page.getByLabel('Total ceiling, ₽').fill('10,50');
      await page.getByRole('button', { name: 'Create the key' }).click();
      assert.match(await page.locator('#secret').innerText(), /^tg-/);
      await sound(visit, 'cabinet-key-made');
      await page.getByRole('link', { name: 'Open the key’s page' }).click();
      await page.getByRole('heading', { name: `Key ci-${screen}-${scheme}` }).waitFor();
      assert.equal(await page.getByLabel('Total ceiling, ₽').inputValue(), '10.50');
      await sound(visit, 'cabinet-key');
      await page.locator('summary', { hasText: 'Delete' }).click();
      await page.getByLabel('Delete the key permanently.').check();
      await page.getByRole('button', { name: 'Delete permanently' }).click();
      await page.getByText('The key was deleted.').waitFor();
      await page.goto(`${at.url}/cabinet/payments`);
      await page.getByRole('alert').filter({ hasText: 'Your role in this account does not allow this' }).waitFor();
      await complained(visit, 403);
      await sound(visit, 'cabinet-refused');
      await visit.context.close();
    });

    it(`developer sees the price, the response and the charge of a call: ${screen}, ${scheme}`, async () => {
      const mail = `developer-${screen}-${scheme}@acme.example`;
      const visit = await signedIn(mail, { screen, scheme, locale: 'en-GB' }, ENGLISH);
      const { page } = visit;
      page.on('dialog', (dialog) => visit.complaints.push(`dialog: ${dialog.message()}`));
      await page.getByRole('navigation').getByRole('link', { name: 'Playground' }).click();
      await page.getByLabel('Message').focus();
      await page.keyboard.type('A message by keyboard');
      await page.locator('#price', { hasText: /^Maximum cost: 0\.1\d+ ₽$/ }).waitFor();
      await sound(visit, 'cabinet-playground');
      await page.keyboard.press('Tab');
      await page.keyboard.press('Enter');
      await page.getByRole('link', { name: 'Open the call’s page' }).waitFor();
      assert.equal(await page.locator('#response').innerText(), MARKUP);
      assert.equal(await page.locator('#response *').count(), 0);
      await page.locator('#charge p.sum', { hasText: '282 × 103.50 ₽/million + 40 × 103.50 ₽/million = 0.03 ₽' }).waitFor();
      await sound(visit, 'cabinet-played');
      assert.doesNotMatch(await page.content(), /tg-\w/, 'the page has no key');
      assert.deepEqual(await page.evaluate(() => [localStorage.length, sessionStorage.length]), [0, 0]);
      const other = visit.requests.filter((url) => !url.startsWith(at.url));
      assert.deepEqual(other, [], 'no request to another origin');
      await page.getByRole('link', { name: 'Open the call’s page' }).click();
      await page.getByRole('heading', { name: /^Call / }).waitFor();
      await visit.context.close();
    });

    it(`member of an empty account is told what to do: ${screen}, ${scheme}`, async () => {
      const mail = `new-${screen}-${scheme}@poor.example`;
      await ask(at, 'POST', 'accounts/poor/members', { mail, role: 'owner' });
      const visit = await signedIn(mail, { screen, scheme }, ['Почта', 'Отправить ссылку для входа', 'Войти', 'Новый клиент']);
      const { page } = visit;
      await page.getByRole('heading', { name: 'Что делать дальше' }).waitFor();
      await sound(visit, 'cabinet-empty');
      await page.getByRole('link', { name: 'Песочница' }).click();
      await page.getByLabel('Сообщение').fill('Привет');
      await page.getByRole('button', { name: 'Отправить' }).click();
      await page.getByRole('alert').filter({ hasText: 'Деньги на балансе кончились. Пополните баланс.' }).waitFor();
      await complained(visit, 401);
      await sound(visit, 'cabinet-play-refused');
      await page.goto(`${at.url}/cabinet`);
      await page.getByRole('link', { name: 'Пополнить баланс' }).click();
      await page.waitForURL('**/cabinet/payments');
      await visit.context.close();
    });

    it(`stranger opens an account by an invitation and spends a promo code: ${screen}, ${scheme}`, async () => {
      const { code: invitation } = await ask(at, 'POST', 'codes', { amount_rub: '100', opens_account: true });
      const { code: promo } = await ask(at, 'POST', 'codes', { amount_rub: '50' });
      addresses += 1;
      const visit = await visitor(browser, { screen, scheme, extraHTTPHeaders: { 'x-forwarded-for': `192.0.2.${addresses}` } });
      const { page } = visit;
      await page.goto(`${at.url}/cabinet/sign-in`);
      await page.getByRole('link', { name: 'Открыть счёт по приглашению' }).click();
      await page.getByRole('heading', { name: 'Открыть счёт' }).waitFor();
      await sound(visit, 'cabinet-sign-up');
      const count = box.mails.length;
      await page.getByLabel('Почта').fill(`zoe-${screen}-${scheme}@new.example`);
      await page.getByLabel('Название компании').fill(`ООО «Новая ${screen}»`);
      await page.getByLabel('Приглашение').fill(invitation.toLowerCase());
      await page.getByLabel('Принимаю условия.').check();
      await page.getByRole('button', { name: 'Открыть счёт' }).click();
      await page.getByText('Если приглашение действует').waitFor();
      await sound(visit, 'cabinet-invited');
      await page.goto(await box.next(count + 1));
      await page.getByRole('button', { name: 'Открыть счёт' }).click();
      await page.getByRole('heading', { name: `ООО «Новая ${screen}»`, level: 1 }).waitFor();
      await page.getByText('100,00 ₽').first().waitFor();
      await page.goto(`${at.url}/cabinet/payments`);
      await page.locator('summary', { hasText: 'Промокод' }).click();
      await page.getByLabel('Промокод').fill(promo);
      await page.getByRole('button', { name: 'Применить промокод' }).click();
      await page.getByText('Промокод принят, баланс пополнен.').waitFor();
      await page.locator('summary', { hasText: 'Промокод' }).click();
      await page.getByLabel('Промокод').fill(promo);
      await page.getByRole('button', { name: 'Применить промокод' }).click();
      await page.getByRole('alert').filter({ hasText: 'Этот код уже применён к вашему счёту' }).waitFor();
      await complained(visit, 422);
      await page.goto(`${at.url}/cabinet`);
      await page.getByText('150,00 ₽').first().waitFor();
      await visit.context.close();
    });
  }
});
