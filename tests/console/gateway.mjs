// A gateway for one test, with the binary that TOLLGATE_BIN names.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export const ADMIN_KEY = 'admin-key-of-the-test-0123';

export async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/// A folder for files, and the cleanup after a test, latest first.
export function leftovers() {
  const folder = mkdtempSync(join(tmpdir(), 'tollgate-console-'));
  const ends = [() => rmSync(folder, { recursive: true })];
  return {
    folder,
    add: (end) => ends.push(end),
    clear: async () => {
      for (const end of ends.reverse()) await end();
    },
  };
}

/// The ports of a gateway, and the text of its configuration: one model `m` of one vendor.
export async function places() {
  const [public_, admin] = [await freePort(), await freePort()];
  return { url: `http://127.0.0.1:${public_}`, admin: `http://127.0.0.1:${admin}` };
}

export const config = ({ url, admin }, { inAdmin = '', ledger = 'memory:', multiplier = '1.15', vendor = 'http://127.0.0.1:9/v1', more = '' } = {}) => `
listen = "${new URL(url).host}"
base_url = "${url}/v1"
[admin]
listen = "${new URL(admin).host}"
key = "\${ADMIN_KEY}"
${inAdmin}
[ledger]
url = "${ledger}"
[[rate.source]]
fixed = "90"
[tariff]
sell_rate_multiplier = "${multiplier}"
[[vendor]]
name = "v"
format = "chat"
url = "${vendor}"
key = "\${VENDOR_KEY}"
[[model]]
id = "m"
family = "F"
usdt_mtok = { input = "1", cached_input = "1", output = "1", cache_write = "1" }
output_tokens_max = 1000
routes = [ { vendor = "v", model = "m", cost_usdt_mtok = { input = "0.8", cached_input = "0.8", output = "0.8", cache_write = "0.8" } } ]
${more}
`;

/// Starts it, and waits until it answers. It is stopped by `left`, or by the returned function.
export async function start(at, text, left, env = {}) {
  const file = join(left.folder, 'tollgate.toml');
  writeFileSync(file, text);
  const gateway = spawn(process.env.TOLLGATE_BIN, ['serve', '--config', file], {
    env: { ...process.env, ADMIN_KEY, VENDOR_KEY: 'x'.repeat(20), ...env },
    stdio: ['ignore', 'inherit', 'inherit'],
  });
  const gone = new Promise((resolve) => gateway.once('exit', resolve));
  const stop = () => {
    gateway.kill();
    return gone;
  };
  left.add(stop);
  for (let turn = 0; ; turn += 1) {
    if (await fetch(`${at.admin}/livez`).then((answer) => answer.ok, () => false)) return stop;
    assert.ok(turn < 400 && gateway.exitCode === null, 'the gateway does not start');
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/// Calls the admin API, and reads the answer.
export async function ask(at, method, path, body) {
  const answer = await fetch(`${at.admin}/admin/v1/${path}`, {
    method,
    headers: { authorization: `Bearer ${ADMIN_KEY}`, 'content-type': 'application/json' },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  assert.equal(answer.status, 200, `${path}: ${await answer.clone().text()}`);
  return answer.json();
}

/// Creates an account with money, and a key for calls.
export async function accountWithKey(at, id = 'acme', more = {}) {
  await ask(at, 'POST', 'accounts', { id });
  await ask(at, 'POST', `accounts/${id}/topups`, { id: 'first', amount_rub: '1000' });
  return ask(at, 'POST', `accounts/${id}/keys`, { name: 'ci', ...more });
}
