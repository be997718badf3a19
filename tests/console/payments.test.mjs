// The holder of a key starts a payment on /usage, click by click. A fake shop replaces YooKassa. TOLLGATE_BIN is the
// gateway's binary.

import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { after, before, describe, it } from 'node:test';
import { SCHEMES, SCREENS, complained, launch, sound, visitor } from './browser.mjs';
import { accountWithKey, ask, config, leftovers, places, start } from './gateway.mjs';

const SECRET = 'test_secret_of_the_shop';
const EVIL = '<img src=x onerror=alert(1)>';

/// Payments by its API of version 3; `said`, if set, is the answer instead.
function shop() {
  const it = { payments: new Map(), said: null };
  it.server = createServer(async (req, res) => {
    let text = '';
    for await (const piece of req) text += piece;
    const answer = (status, body) => res.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
    if (req.headers.authorization !== `Basic ${btoa(`100500:${SECRET}`)}`) return answer(401, { type: 'error' });
    if (it.said) {
      const said = it.said;
      it.said = null;
      return answer(...said);
    }
    if (req.method === 'GET') {
      const found = it.payments.get(req.url.split('/').pop());
      return found ? answer(200, found) : answer(404, { type: 'error' });
    }
    const order = JSON.parse(text);
    const id = `2d00${String(it.payments.size).padStart(4, '0')}-000f-5000-8000-18db351245c7`;
    const confirmation = { type: 'redirect', confirmation_url: `https://yoomoney.example/checkout?orderId=${id}` };
    const payment = { id, status: 'pending', paid: false, amount: order.amount, metadata: order.metadata, confirmation };
    it.payments.set(id, payment);
    return answer(200, payment);
  });
  return it;
}

describe('a caller pays into the account', () => {
  let browser;
  let at;
  const yookassa = shop();
  const left = leftovers();

  before(async () => {
    await new Promise((resolve) => yookassa.server.listen(0, '127.0.0.1', resolve));
    left.add(() => yookassa.server.close());
    at = await places();
    const more = `[payments]
on_page = true
[payments.yookassa]
shop_id = "100500"
secret_key = "\${SHOP_SECRET}"
return_url = "${at.url}/usage"
url = "http://127.0.0.1:${yookassa.server.address().port}/v3"`;
    await start(at, config(at, { more }), left, { SHOP_SECRET: SECRET });
    browser = await launch();
    left.add(() => browser.close());
  });
  after(left.clear);

  async function typed(options, key) {
    const visit = await visitor(browser, { locale: 'en-GB', ...options });
    const { page } = visit;
    await page.goto(`${at.url}/usage`);
    await page.getByLabel('Key', { exact: true }).fill(key);
    await page.getByRole('button', { name: 'Show' }).click();
    await page.getByRole('heading', { name: 'Top up the balance' }).waitFor();
    return visit;
  }

  /// Requests an amount, and waits for the gateway's answer.
  async function asked(page, amount) {
    await page.getByLabel('Amount, ₽').fill(amount);
    const answered = page.waitForResponse((answer) => answer.url().endsWith('/payments') && answer.request().method() === 'POST');
    const [answer] = await Promise.all([answered, page.getByRole('button', { name: 'Get a payment link' }).click()]);
    return answer.status();
  }

  for (const screen of Object.keys(SCREENS)) {
    for (const scheme of SCHEMES) {
      it(`gets the link, or the reason for a refusal: ${screen}, ${scheme}`, async () => {
        const account = `acme-${screen}-${scheme}`;
        const { key } = await accountWithKey(at, account);
        const visit = await typed({ screen, scheme }, key);
        const { page } = visit;
        assert.equal(await asked(page, '500'), 200);
        const link = page.getByRole('link', { name: 'Go to payment' });
        await link.waitFor();
        const [payment] = (await ask(at, 'GET', `payments?account=${account}`)).payments;
        assert.equal(await link.getAttribute('href'), payment.url);
        assert.match(payment.url, /^https:\/\/yoomoney\.example\/checkout/);
        assert.equal(await link.getAttribute('rel'), 'noopener noreferrer');
        assert.deepEqual([payment.amount_rub, payment.state, payment.by.startsWith('key')], ['500.00', 'open', true]);
        await page.getByText('The payment link is ready.').waitFor();
        await sound(visit, 'usage-payment');

        // An invalid amount is explained next to its field, and the field keeps its value.
        assert.equal(await asked(page, '0,5'), 400);
        const alert = page.getByRole('alert');
        await alert.waitFor();
        await page.waitForFunction(() => {
          const box = document.getElementById('failed').getBoundingClientRect();
          return box.height > 0 && box.top >= 0 && box.bottom <= innerHeight;
        });
        assert.match(await alert.innerText(), /amount_rub/);
        assert.equal(await page.getByLabel('Amount, ₽').inputValue(), '0,5');
        assert.equal(await link.count(), 1);
        await complained(visit, 400);
        await sound(visit, 'usage-payment-refused');

        // While the shop fails there is no link; the next attempt gets one.
        yookassa.said = [500, { type: 'error' }];
        assert.equal(await asked(page, '700'), 503);
        await alert.waitFor();
        assert.equal(await link.count(), 1);
        await complained(visit, 503);
        assert.equal(await asked(page, '700,50'), 200);
        await page.waitForFunction(() => document.querySelectorAll('#payments tbody tr').length >= 2);
        assert.ok(await alert.isHidden());
        for (const request of visit.requests) assert.ok(request.startsWith(`${at.url}/`), request);
        await page.getByRole('button', { name: 'Forget the key' }).click();
        assert.equal(await page.locator('#payments').innerHTML(), '');
        await visit.context.close();
      });
    }
  }

  it('shows texts of payments as text, and only valid links', async () => {
    const { key } = await accountWithKey(at, 'evil');
    const visit = await visitor(browser, { locale: 'en-GB' });
    const { page } = visit;
    await page.route('**/v1/tollgate/payments', async (route) => {
      const offer = await (await route.fetch()).json();
      const row = { id: EVIL, created_at: '2026-01-31T00:00:00Z', state: 'open' };
      offer.payments = [
        { ...row, amount_rub: EVIL, url: 'https://pay.example/"><img src=x onerror=alert(1)>' },
        { ...row, amount_rub: '1.00', url: 'javascript:alert(1)' },
      ];
      offer.debt_rub = `1${EVIL}`;
      await route.fulfill({ json: offer });
    });
    await page.goto(`${at.url}/usage`);
    await page.getByLabel('Key', { exact: true }).fill(key);
    await page.getByRole('button', { name: 'Show' }).click();
    await page.locator('#payments tbody tr').first().waitFor();
    assert.equal(await page.locator('#report img').count(), 0);
    assert.ok((await page.locator('#payments').innerText()).includes(EVIL));
    assert.equal(await page.locator('#payments a').count(), 1);
    await visit.context.close();
  });
});
