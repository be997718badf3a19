// Named operators in the console of a gateway with a history: another tariff, a receiver that rejected an event, a
// refused call, manipulated books. TOLLGATE_BIN is the gateway's binary; Python 3 writes into its file.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { SCHEMES, SCREENS, complained, launch, sound, visitor } from './browser.mjs';
import { accountWithKey, ask, config, leftovers, places, start } from './gateway.mjs';

const PASSWORD = 'correct horse battery';
const VISITS = Object.keys(SCREENS).flatMap((screen) => SCHEMES.map((scheme) => ({ screen, scheme })));

/// Answers everything with the current value of `says`: [status, body].
async function server(left, says) {
  const it = { says };
  const http = createServer(async (req, res) => {
    for await (const _ of req);
    res.writeHead(it.says[0], { 'content-type': 'application/json' }).end(it.says[1]);
  });
  await new Promise((resolve) => http.listen(0, '127.0.0.1', resolve));
  left.add(() => http.close());
  it.url = `http://127.0.0.1:${http.address().port}`;
  return it;
}

const COMPLETION = JSON.stringify({
  id: 'c', object: 'chat.completion', created: 0, model: 'm',
  choices: [{ index: 0, message: { role: 'assistant', content: 'Hello' }, finish_reason: 'stop' }],
  usage: { prompt_tokens: 2000, completion_tokens: 1000, total_tokens: 3000 },
});

/// Changes that no gateway makes: gives up deliveries at once, and adds money without an entry.
const LETTERS = `
import json, sqlite3, sys
books = sqlite3.connect(sys.argv[1])
for event in json.loads(sys.argv[2]):
    letter = {"event": event, "dead_ms": 1795000000000, "error": "answered 500 <b>Oops</b>"}
    books.execute("INSERT INTO notes VALUES (?, 1, ?)", ("dead/crm/%020d" % event["number"], json.dumps(letter)))
books.commit()
`;
// Made while the gateway serves, because it does not start with books that do not balance.
const MONEY = `
import sqlite3, sys
books = sqlite3.connect(sys.argv[1], timeout=30)
books.execute("UPDATE accounts SET balance = balance + 1 WHERE id = 'acme'")
books.commit()
`;

describe('named operators, in a gateway with a past', () => {
  let browser;
  let at;
  let hook;
  let refused;
  const left = leftovers();

  before(async () => {
    const [vendor, crm] = [await server(left, [200, COMPLETION]), await server(left, [204, ''])];
    hook = crm;
    at = await places();
    const [file, books] = ['operators.toml', 'books.db'].map((name) => join(left.folder, name));
    for (const [name, role] of [['anna', 'finance'], ['boris', 'admin']]) {
      execFileSync(process.env.TOLLGATE_BIN, ['operator', 'create', name, '--role', role, '--password-stdin', '--file', file], { input: `${PASSWORD}\n` });
    }
    const text = (multiplier) => config(at, {
      multiplier,
      inAdmin: `operators_file = "${file}"`,
      ledger: `sqlite:${books}`,
      vendor: `${vendor.url}/v1`,
      more: `[[webhook]]\nname = "crm"\nurl = "${crm.url}/hook"\nsecrets = ["\${HOOK_SECRET}"]\nallow_private = true`,
    });
    const secret = { HOOK_SECRET: `whsec_${Buffer.alloc(32, 7).toString('base64')}` };
    const stop = await start(at, text('1.15'), left, secret);
    const { key } = await accountWithKey(at);
    for (const { screen, scheme } of VISITS) await ask(at, 'POST', 'accounts/acme/topups', { id: `${screen}-${scheme}`, amount_rub: '1' });
    const call = (model) => fetch(`${at.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify({ model, messages: [{ role: 'user', content: 'Hello' }] }),
    });
    const answer = await call('m');
    assert.equal(answer.status, 200, await answer.text());
    const { events } = await ask(at, 'GET', `events?limit=${VISITS.length}`);
    await stop();
    execFileSync('python3', ['-c', LETTERS, books, JSON.stringify(events)]);
    await start(at, text('1.30'), left, secret);
    execFileSync('python3', ['-c', MONEY, books]);
    const none = await call('no-such-model');
    assert.equal(none.status, 503);
    await none.text();
    refused = none.headers.get('x-request-id');
    browser = await launch();
    left.add(() => browser.close());
  });
  after(left.clear);

  async function signedIn(name, options) {
    const visit = await visitor(browser, { locale: 'en-GB', ...options });
    await visit.page.goto(`${at.admin}/`);
    await visit.page.getByLabel('Name').fill(name);
    await visit.page.getByLabel('Password or admin key').fill(PASSWORD);
    await visit.page.getByRole('button', { name: 'Sign in' }).click();
    await visit.page.getByRole('heading', { name: 'Overview' }).waitFor();
    return visit;
  }

  VISITS.forEach(({ screen, scheme }, nth) => {
    it(`anna of finance sees prices, a refused call and a breach: ${screen}, ${scheme}`, async () => {
      const visit = await signedIn('anna', { screen, scheme });
      const { page } = visit;
      assert.match(await page.locator('form.who').innerText(), /anna\s+finance/);
      await page.goto(`${at.admin}/console/prices`);
      await page.getByText('multiplier 1.3 (previously 1.15)').waitFor();
      await page.getByLabel('Multiplier', { exact: true }).fill('2.6');
      await page.getByRole('button', { name: 'Compute' }).click();
      await page.waitForURL(/multiplier=2\.6/);
      const row = page.locator('section', { hasText: 'Sales at a different multiplier' }).locator('tbody tr');
      // The exact amount is in the title.
      const cell = (label) => row.locator(`td[data-label="${label}"]`).evaluate((element) => element.querySelector('[title]')?.title ?? element.innerText);
      const [charged, then] = [Number(await cell('Charged, ₽')), Number(await cell('Charged at multiplier 2.6, ₽'))];
      // The call was charged at the earlier multiplier.
      assert.ok(charged > 0 && Math.abs(then - (2.6 / 1.15) * charged) < 2e-6, `${charged} ${then}`);
      await sound(visit, 'console-prices-versions');

      // The usage tables are sorted by the links in their heads, which a phone hides, or by a field of the form.
      await page.goto(`${at.admin}/console/usage?account=acme`);
      await page.locator('section', { hasText: 'By vendor' }).getByRole('link', { name: 'Charged, ₽' }).press('Enter');
      await page.waitForURL(/account=acme&sort=charged/);
      assert.equal(await page.locator('th[aria-sort="descending"]').count(), await page.locator('main table').count());
      await sound(visit, 'console-usage-sorted');
      await page.getByLabel('Sort by').selectOption({ label: 'Calls' });
      await page.getByRole('button', { name: 'Show' }).click();
      await page.waitForURL(/account=acme&.*sort=calls/);
      assert.equal(await page.locator('th[aria-sort="descending"]').first().innerText(), 'Calls ↓');

      await page.goto(`${at.admin}/console/calls`);
      await page.getByLabel('Call number').fill(refused);
      await page.getByRole('button', { name: 'Show' }).click();
      await page.getByRole('heading', { name: `Call ${refused}` }).waitFor();
      await page.getByText('The call was refused before money was held').waitFor();
      await page.locator('section', { hasText: 'Cause' }).locator('code', { hasText: 'model_not_found' }).waitFor();
      await sound(visit, 'console-call-refused');

      await page.goto(`${at.admin}/console/calls`);
      await page.getByLabel('Status').selectOption('refused');
      await page.getByRole('button', { name: 'Show' }).click();
      await page.waitForURL(/end=refused/);
      await page.waitForLoadState();
      assert.equal(await page.locator('tbody tr').count(), 1);
      await page.locator('tbody td', { hasText: 'model_not_found' }).waitFor();
      await sound(visit, 'console-calls-refused');

      await page.goto(`${at.admin}/console/audit`);
      await page.getByRole('button', { name: 'Run the audit' }).click();
      await page.getByRole('alert').filter({ hasText: 'acme' }).waitFor();
      await sound(visit, 'console-audit-breach');

      await page.goto(`${at.admin}/console/accounts/acme`);
      await page.locator('summary', { hasText: /^Top up$/ }).waitFor();
      assert.equal(await page.locator('summary', { hasText: 'New key' }).count(), 0);
      await visit.context.close();
    });

    it(`boris sends a dead letter again and makes an owner key: ${screen}, ${scheme}`, async () => {
      const visit = await signedIn('boris', { screen, scheme });
      const { page } = visit;
      await page.goto(`${at.admin}/console/events`);
      const replays = page.getByRole('button', { name: /^Send again: event/ });
      const before_ = await replays.count();
      assert.equal(before_, VISITS.length - nth);
      await sound(visit, 'console-events-dead');
      hook.says = [500, '{}'];
      await replays.first().click();
      await page.getByRole('alert').filter({ hasText: 'did not accept event' }).waitFor();
      await complained(visit, 502);
      // The message is above the letters, which may come later.
      await page.waitForLoadState();
      assert.equal(await replays.count(), before_);
      await sound(visit, 'console-events-not-taken');
      hook.says = [204, ''];
      await replays.first().click();
      await page.getByText('The event was sent again, and the receiver accepted it.').waitFor();
      await page.waitForLoadState();
      assert.equal(await replays.count(), before_ - 1);

      await page.goto(`${at.admin}/console/accounts/acme`);
      await page.locator('summary', { hasText: 'New key' }).click();
      const form = page.locator('details', { has: page.locator('summary', { hasText: 'New key' }) });
      await form.getByLabel('Name').fill(`owner-${screen}-${scheme}`);
      await form.getByLabel('Owner key').check();
      await form.getByRole('button', { name: 'Create' }).click();
      const secret = await page.locator('#secret').innerText();
      await page.getByRole('link', { name: 'Open the key’s page' }).click();
      await page.waitForURL('**/console/keys/*');
      await page.getByText('owner key: manages').waitFor();
      await sound(visit, 'console-key-owner');

      // The key is found by the prefix of its secret. Then its group, concurrency and alerts are changed.
      const group = `team-${screen}-${scheme}`;
      await ask(at, 'POST', 'accounts/acme/groups', { id: group, ceiling_month_rub: '40' });
      await page.goto(`${at.admin}/console/accounts`);
      await page.getByLabel('Key ID or prefix').fill(secret);
      await page.getByRole('button', { name: 'Search' }).click();
      await page.waitForURL(/[?&]key=/);
      assert.ok(!page.url().includes(secret), 'the whole key is in no address');
      await page.getByRole('heading', { name: 'Matching keys' }).waitFor();
      await sound(visit, 'console-accounts-key');
      await page.locator('tbody th a').first().click();
      await page.waitForURL('**/console/keys/*');
      await page.getByLabel('Concurrent calls').fill('3');
      await page.getByLabel('Group').selectOption(group);
      await page.getByLabel('Idempotency-Key').check();
      await page.getByRole('button', { name: 'Save', exact: true }).click();
      await page.getByText('Saved.').waitFor();
      assert.equal(await page.getByLabel('Concurrent calls').inputValue(), '3');
      assert.equal(await page.getByLabel('Group').inputValue(), group);
      assert.ok(await page.getByLabel('Idempotency-Key').isChecked());
      await page.locator('summary', { hasText: 'Alerts' }).click();
      await page.getByLabel('Alert levels for the amount left under a ceiling').fill('10 2.50');
      await page.getByRole('button', { name: 'Save the alert levels' }).click();
      await page.getByText('Saved.').waitFor();
      await page.locator('summary', { hasText: 'Alerts' }).click();
      assert.equal(await page.getByLabel('Alert levels for the amount left under a ceiling').inputValue(), '10.00 2.50');
      await sound(visit, 'console-key-limits');
      await page.goto(`${at.admin}/console/accounts/acme`);
      await page.locator('tbody th', { hasText: group }).waitFor();
      await sound(visit, 'console-account-groups');
      await visit.context.close();
    });
  });
});
