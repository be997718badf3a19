// Codex CLI, headless, in a home of its own, with the ten lines of configuration that docs/clients.md has for it.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { Key, NUMBER, URL } from "./gateway.mjs";

const CODEX = fileURLToPath(new globalThis.URL("node_modules/.bin/codex", import.meta.url));
const TIMEOUT_MS = 90_000;
/** A model of each vendor's format. */
const MODELS = ["demo-responses", "demo-chat", "demo-messages"];

/** Runs a task; says its exit code, what was printed, and what `name` has in its folder. */
async function codex(model, task, { file } = {}) {
  const key = await Key.create();
  const home = await mkdtemp(join(tmpdir(), "codex-"));
  const work = join(home, "work");
  await mkdir(work);
  await writeFile(
    join(home, "config.toml"),
    `model = "${model}"
model_provider = "tollgate"
[model_providers.tollgate]
name = "Tollgate"
base_url = "${URL}/v1"
env_key = "TOLLGATE_KEY"
wire_api = "responses"
request_max_retries = 1
stream_max_retries = 1
`,
  );
  const env = { PATH: process.env.PATH, HOME: home, CODEX_HOME: home, LANG: "C.UTF-8", TOLLGATE_KEY: key.secret };
  const options = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", task];
  try {
    return await new Promise((resolve) => {
      const child = execFile(CODEX, options, { cwd: work, env, timeout: TIMEOUT_MS }, async (error, out, errors) => {
        const made = file && (await readFile(join(work, file), "utf8").catch(() => null));
        resolve({ key, code: error ? error.code : 0, printed: out + errors, made });
      });
      child.stdin.end();
    });
  } finally {
    await rm(home, { recursive: true, force: true });
  }
}

for (const model of MODELS) {
  test(`${model}: a question is answered and charged`, async () => {
    const { key, code, printed } = await codex(model, "Привет, кодекс");
    assert.equal(code, 0, printed);
    assert.match(printed, /Вы написали: Привет, кодекс/);
    assert.ok((await key.spent()) > 0);
  });

  test(`${model}: a command runs, and its output is read`, async () => {
    const task = 'run-tool exec_command {"cmd":"echo hello-from-shell > made.txt; cat made.txt"}';
    const { code, printed, made } = await codex(model, task, { file: "made.txt" });
    assert.equal(code, 0, printed);
    assert.equal(made, "hello-from-shell\n", printed);
    assert.match(printed, /Результат: [\s\S]*hello-from-shell/);
  });

  test(`${model}: a broken stream fails with its number`, async () => {
    const { code, printed } = await codex(model, "vendor-cut и ещё много много слов");
    assert.notEqual(code, 0, printed);
    assert.match(printed, NUMBER);
  });

  test(`${model}: a refusal is readable`, async () => {
    const { code, printed } = await codex(model, "vendor-400");
    assert.notEqual(code, 0, printed);
    assert.match(printed, /отказ поставщика модели/);
  });
}
