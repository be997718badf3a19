// Sign-in to the console with an OpenID provider, click by click. The test runs its own provider (oidc-provider), on
// another site than the console. TOLLGATE_BIN is the gateway's binary.

import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import Provider from 'oidc-provider';
import { SCHEMES, SCREENS, launch, sound, visitor } from './browser.mjs';
import { config, freePort, leftovers, places, start } from './gateway.mjs';

const GROUPS = { anna: ['tollgate-admins'], boris: ['everybody'], eve: ['guests'] };

function provided(issuer, back) {
  return new Provider(issuer, {
    clients: [{ client_id: 'tollgate', client_secret: 'secret-of-the-client', redirect_uris: [back], grant_types: ['authorization_code'], response_types: ['code'] }],
    pkce: { required: () => true },
    // Like most providers, this one puts the OpenID claims of the scopes into the token.
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

const section = (issuer, back) => `[admin.oidc]
issuer = "${issuer}"
client_id = "tollgate"
client_secret = "\${OIDC_SECRET}"
redirect_url = "${back}"
scopes = ["email", "groups"]
[admin.oidc.roles]
admin = ["tollgate-admins"]
read = ["everybody"]`;

describe('signing in by a provider', () => {
  let browser;
  let admin;
  let issuer;
  const left = leftovers();
  before(async () => {
    const at = await places();
    admin = at.admin;
    const port = await freePort();
    // Another site than 127.0.0.1, so that same-site cookies are not sent from there.
    issuer = `http://localhost:${port}`;
    const back = `${admin}/console/oidc/back`;
    const server = provided(issuer, back).listen(port);
    left.add(() => server.close());
    await start(at, config(at, { more: section(issuer, back) }), left, { OIDC_SECRET: 'secret-of-the-client' });
    browser = await launch();
    left.add(() => browser.close());
  });
  after(left.clear);

  async function signIn(page, name) {
    await page.goto(`${admin}/`);
    await page.getByRole('link', { name: 'Sign in with single sign-on' }).click();
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
        // Messages of the provider's own pages are not checked.
        visit.complaints.length = 0;
        await page.goto(`${admin}/console/accounts`);
        await page.locator('summary', { hasText: 'New account' }).waitFor();
        await page.getByRole('button', { name: 'Sign out', exact: true }).click();
        await page.getByRole('link', { name: 'Sign out at the identity provider as well' }).waitFor();
        await sound(visit, 'console-oidc-left');
        await page.getByRole('link', { name: 'Sign out at the identity provider as well' }).click();
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

  it('explains a refusal to a person without a role', async () => {
    const visit = await visitor(browser, { locale: 'en-GB' });
    await signIn(visit.page, 'eve');
    await visit.page.getByRole('alert').filter({ hasText: 'admin.oidc.roles' }).waitFor();
    await visit.context.close();
  });
});
