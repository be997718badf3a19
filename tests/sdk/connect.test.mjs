// The files of `GET /v1/tollgate/connect/…`, used unchanged by the real clients. Each client runs in its own home
// folder. It gets the key from its environment, or from the file if the client reads no environment variable.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { Key, URL } from "./gateway.mjs";

const CONNECT = `${URL}/v1/tollgate/connect`;
const TIMEOUT_MS = 90_000;
const MODELS = ["demo-chat", "demo-messages", "demo-responses"];
const TEXT = "Пароль: зимородок";

const installed = (path) => fileURLToPath(new globalThis.URL(`node_modules/${path}`, import.meta.url));
const CLAUDE = installed(".bin/claude");
const CONTINUE = installed(".bin/cn");
// The program itself, from the one package that runs on every x64 machine with Linux.
const OPENCODE = installed("opencode-linux-x64-baseline/bin/opencode");
const noOpencode = process.platform === "linux" && process.arch === "x64" ? false : "pinned for Linux on x64 alone";

/** Requests a page, and waits as long as the rate limit of the price list requires. */
async function get(url) {
  const response = await fetch(url);
  if (response.status !== 429) return response;
  await sleep(1000 * Number(response.headers.get("retry-after")));
  return get(url);
}

async function served(client) {
  const response = await get(`${CONNECT}/${client}`);
  assert.equal(response.status, 200, client);
  return response.text();
}

/** Runs a client in a new home folder with these `files`. Returns what it printed and what its key spent. */
async function run(command, args, { files = {}, key, ...env }) {
  const home = await mkdtemp(join(tmpdir(), "tollgate-connect-"));
  try {
    for (const [path, text] of Object.entries(files)) {
      await mkdir(dirname(join(home, path)), { recursive: true });
      await writeFile(join(home, path), text);
    }
    const child = {
      cwd: home,
      env: { PATH: process.env.PATH, HOME: home, LANG: "C.UTF-8", ...env },
      timeout: TIMEOUT_MS,
      killSignal: "SIGKILL",
    };
    const printed = await new Promise((resolve, reject) => {
      const running = execFile(command, args, child, (error, stdout, stderr) =>
        error ? reject(new Error(`${error.message}\n${stdout}\n${stderr}`)) : resolve(stdout),
      );
      running.stdin.end();
    });
    return { printed, spent: await key.spent() };
  } finally {
    await rm(home, { recursive: true, force: true });
  }
}

/** Checks that the client got an answer, and that the call went through the gateway. */
function assertAnswered({ printed, spent }) {
  assert.match(printed, /Вы написали:[^]*Пароль: зимородок/);
  assert.ok(spent > 0n, printed);
}

test("each listed client has a file, and the error for an unknown client lists them", async () => {
  const { clients } = await (await get(CONNECT)).json();
  for (const { client, url } of clients) {
    assert.equal(url, `${CONNECT}/${client}`);
    await served(client);
  }
  const response = await get(`${CONNECT}/emacs`);
  assert.equal(response.status, 404);
  const { error } = await response.json();
  for (const { client } of clients) assert.ok(error.message.includes(client), error.message);
});

// opencode would look for newer models, plugins and versions of itself on other servers.
const ALONE = {
  OPENCODE_DISABLE_AUTOUPDATE: "1",
  OPENCODE_DISABLE_DEFAULT_PLUGINS: "1",
  OPENCODE_DISABLE_LSP_DOWNLOAD: "1",
  OPENCODE_DISABLE_MODELS_FETCH: "1",
};

test("opencode gets an answer from the file's first model, and from each other model", { skip: noOpencode }, async () => {
  const files = { ".config/opencode/opencode.json": await served("opencode") };
  for (const options of [[], ...MODELS.map((model) => ["-m", `tollgate/${model}`])]) {
    const key = await Key.create();
    const env = { ...ALONE, TOLLGATE_KEY: key.secret };
    assertAnswered(await run(OPENCODE, ["run", ...options, TEXT], { files, key, ...env }));
  }
});

test("opencode reads limits and prices of the models in the file", { skip: noOpencode }, async () => {
  const files = { "opencode.json": await served("opencode") };
  const key = await Key.create();
  const { printed } = await run(OPENCODE, ["models", "tollgate", "--verbose"], { files, key, ...ALONE });
  for (const model of MODELS) assert.ok(printed.includes(`tollgate/${model}`), printed);
  assert.match(printed, /"output": 32000/);
  assert.match(printed, /"input": 0\.2875/);
});

test("Claude Code gets an answer with settings.json and the key in it", async () => {
  const settings = await served("claude-code");
  for (const options of [[], ["--model", "haiku"], ...MODELS.map((model) => ["--model", model])]) {
    const key = await Key.create();
    const files = { ".claude/settings.json": settings.replace("tg-YOUR-KEY", key.secret) };
    const args = ["-p", TEXT, ...options];
    assertAnswered(await run(CLAUDE, args, { files, key, DISABLE_AUTOUPDATER: "1" }));
  }
});

test("Continue gets an answer with config.yaml", async () => {
  const key = await Key.create();
  const config = await served("continue");
  const files = { "config.yaml": config };
  const args = ["-p", "--config", "config.yaml", TEXT];
  assertAnswered(await run(CONTINUE, args, { files, key, TOLLGATE_KEY: key.secret }));
  // The key may be in a file next to the configuration, which the editors' extension reads.
  const beside = { ...files, ".continue/.env": `TOLLGATE_KEY=${key.secret}\n` };
  assertAnswered(await run(CONTINUE, args, { files: beside, key }));
  // The last model works as well as the first.
  const [head, ...models] = config.split(/^(?= {2}- name:)/m);
  const last = { "config.yaml": head + models.at(-1) };
  assertAnswered(await run(CONTINUE, args, { files: last, key, TOLLGATE_KEY: key.secret }));
});

test("curl gets an answer in each format, and embeddings", async () => {
  const key = await Key.create();
  const script = await served("curl");
  const { printed, spent } = await run("bash", ["-c", script], { key, TOLLGATE_KEY: key.secret });
  const [chat, message, response, vectors] = printed.trim().split("\n").map((line) => JSON.parse(line));
  assert.equal(chat.choices[0].message.content, "Вы написали: Привет");
  assert.equal(message.content[0].text, "Вы написали: Привет");
  assert.equal(response.output.at(-1).content[0].text, "Вы написали: Привет");
  assert.equal(vectors.data[0].embedding.length, 3);
  assert.ok(spent > 0n);
});

test("curl without a key names the missing variable", async () => {
  const key = await Key.create();
  await assert.rejects(run("bash", ["-c", await served("curl")], { key }), /TOLLGATE_KEY/);
});
