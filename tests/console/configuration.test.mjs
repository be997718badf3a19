// An operator's first day without a terminal: a vendor from a preset, its test, a price, an account, a key, a payment,
// another operator, a statement. TOLLGATE_BIN is the gateway's binary. The vendor is a fake that answers in the chat format.

import assert from 'node:assert/strict';
import { generateKeyPairSync } from 'node:crypto';
import { readFileSync, readdirSync, statSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { SCREENS, complained, launch, sound, visitor } from './browser.mjs';
import { ADMIN_KEY, config, leftovers, places, start } from './gateway.mjs';

const KEY = 'sk-typed-in-the-browser-0123456789';
const USAGE = { prompt_tokens: 20, completion_tokens: 5, total_tokens: 25 };
const LANGUAGES = { 'en-GB': 1, 'ru-RU': 0 };

/// A vendor that answers calls with its key, and refuses others with a text that is markup.
async function vendor(left) {
  const http = createServer(async (req, res) => {
    let text = '';
    for await (const part of req) text += part;
    const { model, stream } = JSON.parse(text);
    if (req.headers.authorization !== `Bearer ${KEY}`) {
      res.writeHead(401, { 'content-type': 'application/json' }).end('{"error":{"message":"<script>alert(1)</script>"}}');
      return;
    }
    const chunk = (delta, more) => `data: ${JSON.stringify({ id: 'c', object: 'chat.completion.chunk', created: 0, model, choices: [{ index: 0, delta, finish_reason: null }], ...more })}\n\n`;
    if (stream) {
      res.writeHead(200, { 'content-type': 'text/event-stream' });
      const end = `data: ${JSON.stringify({ id: 'c', object: 'chat.completion.chunk', created: 0, model, choices: [{ index: 0, delta: {}, finish_reason: 'stop' }], usage: USAGE })}\n\n`;
      res.end(`${chunk({ role: 'assistant', content: '<b>ok</b>' })}${end}data: [DONE]\n\n`);
      return;
    }
    const message = { role: 'assistant', content: '<b>ok</b>' };
    res.writeHead(200, { 'content-type': 'application/json' });
    res.end(JSON.stringify({ id: 'c', object: 'chat.completion', created: 0, model, choices: [{ index: 0, message, finish_reason: 'stop' }], usage: USAGE }));
  });
  await new Promise((resolve) => http.listen(0, '127.0.0.1', resolve));
  left.add(() => http.close());
  return `http://127.0.0.1:${http.address().port}`;
}

const folded = (page, summary) => page.locator('details', { has: page.locator('summary', { hasText: new RegExp(`^${summary}$`) }) });

describe('an operator without a terminal', () => {
  let browser;
  before(async () => {
    browser = await launch();
  });
  after(() => browser.close());

  for (const screen of Object.keys(SCREENS)) {
    for (const locale of Object.keys(LANGUAGES)) {
      it(`sells the first call: ${screen}, ${locale}`, async () => {
        const left = leftovers();
        try {
          await firstDay(browser, left, screen, locale);
        } finally {
          await left.clear();
        }
      });
    }
  }
});

/// The key file of a service account, in several lines.
const serviceAccount = () => JSON.stringify({
  type: 'service_account',
  private_key_id: '1',
  private_key: generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ type: 'pkcs8', format: 'pem' }),
  client_email: 'gate@p.iam.gserviceaccount.com',
  token_uri: 'https://oauth2.googleapis.com/token',
}, null, 2);

/// Vendors whose presets need values or another login: what is chosen and typed, and what the file then has.
const CLOUDS = [
  { preset: 'azure', login: ['приложение Microsoft Entra', 'Microsoft Entra application'], key: KEY, wrong: 'a/b',
    values: { 'Azure resource name': 'acme', 'Entra tenant ID': 't-1', 'Entra application ID': 'c-1' },
    written: 'login = { preset = "entra", client_secret = "file:' },
  { preset: 'vertex', key: serviceAccount(), values: { 'Google Cloud project ID': 'acme-prod-421' }, written: 'login = { key_file = "file:' },
  { preset: 'bedrock', login: ['роль экземпляра EC2', 'role of the EC2 instance'], values: { 'AWS region': 'us-east-1' }, written: 'login = { preset = "role" }' },
  { preset: 'yandexgpt', key: KEY, values: { 'Yandex Cloud folder ID': 'b1g' }, written: 'values = { folder = "b1g" }' },
];
const RUSSIAN = {
  'Azure resource name': 'имя ресурса Azure', 'Entra tenant ID': 'ID клиента (tenant) Entra', 'Entra application ID': 'ID приложения Entra',
  'Google Cloud project ID': 'ID проекта Google Cloud', 'AWS region': 'регион AWS', 'Yandex Cloud folder ID': 'ID каталога Yandex Cloud',
};

describe('a vendor whose preset needs values or another login', () => {
  let browser;
  before(async () => {
    browser = await launch();
  });
  after(() => browser.close());

  for (const [screen, locale, scheme] of [['phone', 'ru-RU', 'dark'], ['desk', 'en-GB', 'light']]) {
    it(`is added: ${screen}, ${locale}`, async () => {
      const left = leftovers();
      try {
        const at = await places();
        await start(at, config(at), left);
        const visit = await visitor(browser, { screen, locale, scheme });
        for (const cloud of CLOUDS) await addCloud(visit, at, left, locale, cloud);
        await visit.context.close();
      } finally {
        await left.clear();
      }
    });
  }
});

async function addCloud(visit, at, left, locale, { preset, login, values, key, wrong, written }) {
  const t = (...both) => both[LANGUAGES[locale]];
  const { page } = visit;
  const shot = (title) => sound(visit, `cloud-${locale.slice(0, 2)}-${preset}-${title}`);
  const show = () => page.getByRole('button', { name: t('Посмотреть изменение', 'Preview the change') }).click();
  const fields = Object.entries(values).map(([name, value]) => [page.getByLabel(t(RUSSIAN[name], name)), value]);
  await page.goto(`${at.admin}/console/vendors`);
  if (page.url().includes('sign-in')) {
    await page.getByLabel(t('Пароль или ключ администратора', 'Password or admin key')).fill(ADMIN_KEY);
    await page.getByRole('button', { name: t('Войти', 'Sign in') }).click();
    await page.goto(`${at.admin}/console/vendors`);
  }
  await folded(page, t('Добавить поставщика', 'Add a vendor')).locator('summary').click();
  await page.getByRole('combobox', { name: t('Шаблон', 'Preset') }).selectOption(preset);
  await page.getByRole('button', { name: t('Продолжить', 'Continue') }).click();
  if (login) await page.getByRole('link', { name: t(...login) }).click();
  for (const [field] of fields) assert.ok(await field.evaluate((input) => input.required && input.value === ''));
  if (wrong) {
    for (const [field] of fields) await field.fill(wrong);
    await page.getByLabel(t('Ввести ключ поставщика на следующей странице', 'Enter the vendor’s key on the next page')).check();
    await show();
    await page.getByRole('alert').getByText('values.resource: must contain only letters').waitFor();
    await complained(visit, 400);
    assert.equal(await fields[0][0].inputValue(), wrong, 'the form keeps what was typed');
  }
  for (const [field, value] of fields) await field.fill(value);
  if (key) await page.getByLabel(t('Ввести ключ поставщика на следующей странице', 'Enter the vendor’s key on the next page')).check();
  await shot('new');
  await show();
  if (key) await page.getByLabel(t('Ключ поставщика', 'Vendor’s key')).fill(key);
  await shot('change');
  await page.getByRole('button', { name: t('Записать файл конфигурации', 'Write the configuration file') }).click();
  await page.getByText(t('изменение действует', 'the change is in force')).waitFor();
  const text = readFileSync(join(left.folder, 'tollgate.toml'), 'utf8');
  assert.ok(text.includes(written), text);
}

async function firstDay(browser, left, screen, locale) {
  const t = (...both) => both[LANGUAGES[locale]];
  const [url, at] = [await vendor(left), await places()];
  await start(at, config(at, { ledger: `sqlite:${join(left.folder, 'books.db')}`, inAdmin: `operators_file = "${join(left.folder, 'operators.toml')}"` }), left);
  const file = () => readFileSync(join(left.folder, 'tollgate.toml'), 'utf8');
  const visit = await visitor(browser, { screen, locale });
  const { page } = visit;
  const shot = (title) => sound(visit, `day-${locale.slice(0, 2)}-${title}`);
  const nav = (ru, en) => page.getByRole('navigation').getByRole('link', { name: t(ru, en), exact: true }).click();
  const button = (ru, en) => page.getByRole('button', { name: t(ru, en), exact: true });
  const open = async (ru, en) => {
    const form = folded(page, t(ru, en));
    if (!(await form.evaluate((details) => details.open))) await form.locator('summary').click();
    return form;
  };

  await page.goto(`${at.admin}/`);
  await page.getByLabel(t('Пароль или ключ администратора', 'Password or admin key')).fill(ADMIN_KEY);
  await button('Войти', 'Sign in').click();
  await nav('Поставщики', 'Vendors');

  // A vendor from a preset: what would be written, then the key, then the file.
  let form = await open('Добавить поставщика', 'Add a vendor');
  await form.getByRole('combobox', { name: t('Шаблон', 'Preset') }).selectOption('deepseek');
  await form.getByRole('button').click();
  await page.getByRole('heading', { name: t('Новый поставщик: DeepSeek', 'New vendor: DeepSeek') }).waitFor();
  await page.getByLabel(t('Адрес поставщика', 'Vendor URL')).fill(url);
  await page.getByLabel(t('Ввести ключ поставщика на следующей странице', 'Enter the vendor’s key on the next page')).check();
  await shot('vendor-new');
  const before = file();
  await button('Посмотреть изменение', 'Preview the change').click();
  await page.getByText('+ preset = "deepseek"').waitFor();
  assert.equal(file(), before, 'a preview writes nothing');
  await page.getByLabel(t('Ключ поставщика', 'Vendor’s key')).fill(KEY);
  await shot('vendor-change');
  await button('Записать файл конфигурации', 'Write the configuration file').click();
  await page.getByText(t('изменение действует', 'the change is in force')).waitFor();
  await page.getByRole('heading', { name: t('Поставщик deepseek', 'Vendor deepseek') }).waitFor();
  assert.ok(file().startsWith(before.trimEnd()) && file().includes('preset = "deepseek"'), file());
  assert.ok(!file().includes(KEY) && !(await page.content()).includes(KEY));
  const keys = readdirSync(left.folder).filter((name) => name.endsWith('.key'));
  assert.deepEqual(keys, ['deepseek.key']);
  assert.equal(statSync(join(left.folder, keys[0])).mode & 0o777, 0o600);
  await page.getByRole('combobox', { name: t('Модель', 'Model') }).selectOption('deepseek-flash');
  await button('Проверить поставщика', 'Test the vendor').click();
  await page.getByRole('heading', { name: t('Результат проверки', 'Test result') }).waitFor();
  assert.equal(await page.getByText('<b>ok</b>').count(), 2, 'a plain call and a stream');
  await shot('vendor');

  // A price of a model that had the preset's.
  await nav('Модели и цены', 'Models and prices');
  await page.getByRole('link', { name: 'm', exact: true }).click();
  await page.getByRole('heading', { name: t('Модель m', 'Model m') }).waitFor();
  form = await open('Изменить цену', 'Change the price');
  await form.getByLabel(t('Выход', 'Output'), { exact: true }).fill('2,5');
  await shot('model');
  await form.getByRole('button').click();
  await page.getByText('output = "2.5"').waitFor();
  await shot('price-change');
  await button('Записать файл конфигурации', 'Write the configuration file').click();
  await page.getByText(t('изменение действует', 'the change is in force')).waitFor();
  assert.ok(file().includes('output = "2.5", cache_write = "1"'));

  // What was changed is listed, and the file before the price is restored and brought back.
  const cheap = file();
  const restore = async () => {
    await nav('Изменения', 'Changes');
    form = await open('Вернуть прежнюю конфигурацию', 'Restore the previous configuration');
    await form.getByRole('button').click();
    await page.getByText('output = "2.5"').waitFor();
    await button('Записать файл конфигурации', 'Write the configuration file').click();
    await page.getByText(t('изменение действует', 'the change is in force')).waitFor();
  };
  await restore();
  assert.ok(!file().includes('output = "2.5"'), file());
  await restore();
  assert.equal(file(), cheap);
  const changes = await page.locator('tbody th').allInnerTexts();
  assert.deepEqual(changes.slice(0, 4), [
    ...Array(3).fill(t('Конфигурация изменена', 'Configuration changed')), t('Поставщик проверен', 'Vendor tested'),
  ]);
  const priced = page.locator('tbody tr', { hasText: 'change_price' });
  await priced.locator('summary').click();
  await priced.locator('pre', { hasText: '+ usdt_mtok' }).waitFor();
  await shot('changes');

  // An account with money, a key, a call.
  await nav('Счета', 'Accounts');
  form = await open('Новый счёт', 'New account');
  await form.getByLabel('ID').fill('acme');
  await form.getByRole('button').click();
  await page.waitForURL(/accounts\/acme/);
  form = await open('Пополнить', 'Top up');
  await form.getByLabel(t('Сумма, ₽', 'Amount, ₽')).fill('1 000,50');
  await form.getByLabel(t('ID платежа', 'Payment ID')).fill('invoice-17');
  await form.getByRole('button').click();
  await page.getByText(t('Платёж зачислен', 'The payment is booked')).waitFor();
  form = await open('Новый ключ', 'New key');
  await form.getByRole('button').click();
  const secret = await page.locator('#secret').innerText();
  const answer = await fetch(`${at.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${secret}`, 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'deepseek-flash', messages: [{ role: 'user', content: 'Hello' }] }),
  });
  assert.equal(answer.status, 200, await answer.clone().text());

  // Another operator, who chooses a password and looks for a payment.
  await nav('Операторы', 'Operators');
  form = await open('Пригласить оператора', 'Invite an operator');
  await form.getByLabel(t('Имя', 'Name')).fill('anna');
  await form.getByRole('combobox', { name: t('Роль', 'Role') }).selectOption('finance');
  await form.getByRole('button').click();
  const link = await page.locator('#link').innerText();
  await shot('invited');
  const other = await visitor(browser, { screen, locale });
  await other.page.goto(link);
  await sound(other, `day-${locale.slice(0, 2)}-invitation`);
  // The choice of a language keeps the invitation.
  await other.page.getByRole('link', { name: t('English', 'Русский') }).click();
  await other.page.getByRole('button', { name: t('Accept the invitation and sign in', 'Принять приглашение и войти') }).waitFor();
  await other.page.getByRole('link', { name: t('Русский', 'English') }).click();
  await other.page.getByLabel(t('Придумайте пароль', 'Choose a password')).fill('correct horse battery');
  await other.page.getByRole('button', { name: t('Принять приглашение и войти', 'Accept the invitation and sign in') }).click();
  await other.page.getByRole('heading', { name: t('Обзор', 'Overview') }).waitFor();
  await other.page.getByRole('navigation').getByRole('link', { name: t('Платежи', 'Payments'), exact: true }).click();
  await other.page.getByRole('row', { name: 'invoice-17' }).waitFor();
  await other.page.getByRole('link', { name: 'PDF acme' }).waitFor();
  await sound(other, `day-${locale.slice(0, 2)}-payments`);
  await other.page.getByLabel(t('ID платежа', 'Payment ID')).fill('invoice-17');
  await other.page.getByRole('button', { name: t('Показать', 'Show'), exact: true }).click();
  await other.page.waitForURL(/id=invoice-17/);
  assert.equal(await other.page.locator('tbody tr').count(), 1);
  await other.page.getByText(t('1 000,50', '1,000.50')).waitFor();
  await other.page.goto(`${at.admin}/console/vendors/deepseek`);
  await other.page.getByRole('heading', { name: t('Поставщик deepseek', 'Vendor deepseek') }).waitFor();
  assert.equal(await other.page.getByRole('button', { name: t('Посмотреть изменение', 'Preview the change') }).count(), 0);
  await other.context.close();

  await nav('Платежи', 'Payments');
  const [statement] = await Promise.all([page.waitForEvent('download'), page.getByRole('link', { name: 'PDF acme' }).click()]);
  assert.equal(readFileSync(await statement.path()).subarray(0, 5).toString(), '%PDF-');
  await visit.context.close();
}
