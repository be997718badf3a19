// Signing in to the console by an OpenID provider, click by click: a provider of its own (oidc-provider), on another site
// than the console's. TOLLGATE_BIN is the gateway's binary.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import Provider from 'oidc-provider';
import { SCHEMES, SCREENS, launch, sound, visitor } from './browser.mjs';

const GROUPS = { anna: ['tollgate-admins'], boris: ['everybody'], eve: ['guests'] };

async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

function provided(issuer, back) {
  return new Provider(issuer, {
    clients: [{ client_id: 'tollgate', client_secret: 'secret-of-the-client', redirect_uris: [back], grant_types: ['authorization_code'], response_types: ['code'] }],
    pkce: { required: () => true },
    // As most providers do: what the scopes ask for stands in the token.
    conformIdTokenClaims: false,
    scopes: ['openid', 'email', 'groups'],
    claims: { email: ['email', 'email_verified'], groups: ['groups'] },
    findAccount: (_, id) => ({
      accountId: id,
      claims: () => ({ sub: id, email: `${id}@example.com`, email_verified: true, groups: GROUPS[id] ?? [] }),
    }),
    cookies: { keys: ['a key of the test'] },
    ttl: { AccessToken: 60, AuthorizationCode: 60, Grant: 600, IdToken: 60, Interaction: 600, Session: 600 },
  });
}

const config = (listen, admin, issuer, back) => `
listen = "127.0.0.1:${listen}"
[admin]
listen = "127.0.0.1:${admin}"
key = "\${ADMIN_KEY}"
[admin.oidc]
issuer = "${issuer}"
client_id = "tollgate"
client_secret = "\${OIDC_SECRET}"
redirect_url = "${back}"
scopes = ["email", "groups"]
[admin.oidc.roles]
admin = ["tollgate-admins"]
read = ["everybody"]
[ledger]
url = "memory:"
[[rate.source]]
fixed = "90"
[tariff]
sell_rate_multiplier = "1.15"
[[vendor]]
name = "v"
format = "chat"
url = "http://127.0.0.1:9/v1"
key = "\${VENDOR_KEY}"
[[model]]
id = "m"
family = "F"
usdt_mtok = { input = "1", cached_input = "1", output = "1", cache_write = "1" }
output_tokens_max = 1000
routes = [ { vendor = "v", model = "m" } ]
`;

describe('signing in by a provider', () => {
  let browser;
  let admin;
  let issuer;
  const ends = [];
  before(async () => {
    const ports = [await freePort(), await freePort(), await freePort()];
    admin = `http://127.0.0.1:${ports[1]}`;
    // Another site than 127.0.0.1: cookies for one site alone do not come from there.
    issuer = `http://localhost:${ports[2]}`;
    const server = provided(issuer, `${admin}/console/oidc/back`).listen(ports[2]);
    ends.push(() => server.close());
    const folder = mkdtempSync(join(tmpdir(), 'tollgate-oidc-'));
    ends.push(() => rmSync(folder, { recursive: true }));
    const file = join(folder, 'tollgate.toml');
    writeFileSync(file, config(ports[0], ports[1], issuer, `${admin}/console/oidc/back`));
    const env = { ...process.env, ADMIN_KEY: 'admin-key-of-the-test-0123', OIDC_SECRET: 'secret-of-the-client', VENDOR_KEY: 'x'.repeat(20) };
    const gateway = spawn(process.env.TOLLGATE_BIN, ['serve', '--config', file], { env, stdio: ['ignore', 'inherit', 'inherit'] });
    ends.push(() => gateway.kill());
    for (let turn = 0; ; turn += 1) {
      if (await fetch(`${admin}/livez`).then((answer) => answer.ok, () => false)) break;
      assert.ok(turn < 200, 'the gateway does not start');
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    browser = await launch();
    ends.push(() => browser.close());
  });
  after(async () => {
    for (const end of ends.reverse()) await end();
  });

  async function signIn(page, name) {
    await page.goto(`${admin}/`);
    await page.getByRole('link', { name: 'Sign in by the provider of your accounts' }).click();
    await page.waitForURL(`${issuer}/**`);
    await page.locator('input[name="login"]').fill(name);
    await page.locator('input[name="password"]').fill('any');
    await page.locator('button[type="submit"]').click();
    await page.locator('button[type="submit"]', { hasText: 'Continue' }).click();
  }

  for (const screen of Object.keys(SCREENS)) {
    for (const scheme of SCHEMES) {
      it(`in and out: ${screen}, ${scheme}`, async () => {
        const visit = await visitor(browser, { screen, scheme, locale: 'en-GB' });
        const { page } = visit;
        await page.goto(`${admin}/`);
        await sound(visit, 'console-oidc-sign-in');
        await signIn(page, 'anna');
        await page.getByRole('heading', { name: 'Overview' }).waitFor();
        await page.getByText('oidc:anna@example.com').waitFor();
        // What the provider's own pages say on the way is not ours.
        visit.complaints.length = 0;
        await page.goto(`${admin}/console/accounts`);
        await page.locator('summary', { hasText: 'New account' }).waitFor();
        await page.getByRole('button', { name: 'Sign out', exact: true }).click();
        await page.getByRole('link', { name: 'Sign out at the provider, too' }).waitFor();
        await sound(visit, 'console-oidc-left');
        await page.getByRole('link', { name: 'Sign out at the provider, too' }).click();
        await page.waitForURL(`${issuer}/**`);
        await visit.context.close();
      });
    }
  }

  it('without a script, and with the role of the groups', async () => {
    const visit = await visitor(browser, { javaScriptEnabled: false, locale: 'en-GB' });
    const { page } = visit;
    await signIn(page, 'boris');
    await page.getByRole('heading', { name: 'Overview' }).waitFor();
    await page.goto(`${admin}/console/accounts`);
    assert.equal(await page.locator('summary', { hasText: 'New account' }).count(), 0);
    await visit.context.close();
  });

  it('tells somebody without a role why', async () => {
    const visit = await visitor(browser, { locale: 'en-GB' });
    await signIn(visit.page, 'eve');
    await visit.page.getByRole('alert').filter({ hasText: 'admin.oidc.roles' }).waitFor();
    await visit.context.close();
  });
});
