// Claude Code, headless, in a home of its own: `claude -p` through the gateway.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { Key, NUMBER, URL, cost } from "./gateway.mjs";

const CLAUDE = fileURLToPath(new globalThis.URL("node_modules/.bin/claude", import.meta.url));
const MODEL = "demo-messages";
const TIMEOUT_MS = 90_000;

/** Asks once; answers the report that `--output-format json` prints, of a failure too. */
async function ask(text, credentials) {
  const home = await mkdtemp(join(tmpdir(), "tollgate-claude-"));
  // Nothing of the outer shell but PATH: its own model variables would lead the tool elsewhere.
  const env = {
    PATH: process.env.PATH,
    HOME: home,
    LANG: "C.UTF-8",
    ANTHROPIC_BASE_URL: URL,
    ANTHROPIC_DEFAULT_HAIKU_MODEL: MODEL,
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
    DISABLE_AUTOUPDATER: "1",
    DISABLE_ERROR_REPORTING: "1",
    DISABLE_TELEMETRY: "1",
    ...credentials,
  };
  const options = { cwd: home, env, timeout: TIMEOUT_MS, killSignal: "SIGKILL" };
  const args = ["-p", text, "--model", MODEL, "--output-format", "json"];
  try {
    return await new Promise((resolve, reject) => {
      const child = execFile(CLAUDE, args, options, (error, stdout, stderr) => {
        try {
          resolve(JSON.parse(stdout));
        } catch {
          reject(new Error(`claude printed no report: ${error ?? ""}\n${stdout}\n${stderr}`));
        }
      });
      child.stdin.end();
    });
  } finally {
    await rm(home, { recursive: true, force: true });
  }
}

for (const variable of ["ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY"]) {
  test(`a key in ${variable} gets its answer and is charged by the catalog`, async () => {
    const key = await Key.create();
    const report = await ask("Пароль: зимородок", { [variable]: key.secret });
    assert.equal(report.is_error, false, report.result);
    assert.match(report.result, /Вы написали:[^]*Пароль: зимородок/);
    const { usage } = report;
    const classes = {
      input: usage.input_tokens,
      cached_input: usage.cache_read_input_tokens,
      cache_write: usage.cache_creation_input_tokens,
      output: usage.output_tokens,
    };
    assert.equal(report.num_turns, 1);
    await key.assertSpent(await cost(MODEL, classes));
  });
}

test("a key that cannot pay is told so, with the number to ask about", async () => {
  const key = await Key.create({ ceiling_rub: "0.01" });
  const report = await ask("Привет", { ANTHROPIC_AUTH_TOKEN: key.secret });
  assert.equal(report.is_error, true);
  assert.match(report.result, new RegExp(`403[^]*\\(${NUMBER.source}\\)`));
  await key.assertSpent();
});
