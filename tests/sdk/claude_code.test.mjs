// Claude Code, headless, in a home of its own: `claude -p` through the gateway, to a vendor of either format.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { Key, NUMBER, URL, cost, forEachModel } from "./gateway.mjs";

const CLAUDE = fileURLToPath(new globalThis.URL("node_modules/.bin/claude", import.meta.url));
const TIMEOUT_MS = 90_000;

/** Asks `model`; answers the report that `--output-format json` prints, of a failure too. */
async function ask(model, text, credentials, ...options) {
  const home = await mkdtemp(join(tmpdir(), "tollgate-claude-"));
  // Nothing of the outer shell but PATH: its own model variables would lead the tool elsewhere.
  const env = {
    PATH: process.env.PATH,
    HOME: home,
    LANG: "C.UTF-8",
    ANTHROPIC_BASE_URL: URL,
    ANTHROPIC_DEFAULT_HAIKU_MODEL: model,
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
    DISABLE_AUTOUPDATER: "1",
    DISABLE_ERROR_REPORTING: "1",
    DISABLE_TELEMETRY: "1",
    ...credentials,
  };
  const child = { cwd: home, env, timeout: TIMEOUT_MS, killSignal: "SIGKILL" };
  const args = ["-p", text, "--model", model, "--output-format", "json", ...options];
  try {
    return await new Promise((resolve, reject) => {
      const claude = execFile(CLAUDE, args, child, (error, stdout, stderr) => {
        try {
          resolve(JSON.parse(stdout));
        } catch {
          reject(new Error(`claude printed no report: ${error ?? ""}\n${stdout}\n${stderr}`));
        }
      });
      claude.stdin.end();
    });
  } finally {
    await rm(home, { recursive: true, force: true });
  }
}

/** Tokens by rate class, of all the calls together. */
const classes = ({ usage }) => ({
  input: usage.input_tokens,
  cached_input: usage.cache_read_input_tokens,
  cache_write: usage.cache_creation_input_tokens,
  output: usage.output_tokens,
});

forEachModel("messages", ({ model }) => {
  for (const variable of ["ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY"]) {
    test(`a key in ${variable} gets its answer and is charged by the catalog`, async () => {
      const key = await Key.create();
      const report = await ask(model, "Пароль: зимородок", { [variable]: key.secret });
      assert.equal(report.is_error, false, report.result);
      assert.match(report.result, /Вы написали:[^]*Пароль: зимородок/);
      assert.equal(report.num_turns, 1);
      await key.assertSpent(await cost(model, classes(report)));
    });
  }

  test("a tool is run and its result goes back", async () => {
    const key = await Key.create();
    // The words that the shell puts together stand in the answer only if it ran.
    const text = `run-tool Bash ${JSON.stringify({ command: "echo зимо''родок; expr 6 '*' 7" })}`;
    const report = await ask(model, text, { ANTHROPIC_AUTH_TOKEN: key.secret }, "--allowedTools", "Bash");
    assert.equal(report.is_error, false, report.result);
    assert.match(report.result, /^Результат: [^]*зимородок[^]*42/);
    assert.deepEqual([report.num_turns, report.permission_denials], [2, []]);
    // Two calls, each rounded up by itself.
    const together = await cost(model, classes(report));
    const spent = await key.spent();
    assert.ok(spent === together || spent === together + 1n, `${spent} for what costs ${together}`);
  });

  test("a key that cannot pay is told so, with the number to ask about", async () => {
    const key = await Key.create({ ceiling_rub: "0.01" });
    const report = await ask(model, "Привет", { ANTHROPIC_AUTH_TOKEN: key.secret });
    assert.equal(report.is_error, true);
    assert.match(report.result, new RegExp(`403[^]*\\(${NUMBER.source}\\)`));
    await key.assertSpent();
  });
});
