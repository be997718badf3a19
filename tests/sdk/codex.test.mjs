// Codex CLI, headless, in its own home folder, with the file that `connect/codex` serves.

import assert from "node:assert/strict";
import { after, test } from "node:test";
import { Front } from "./claude.mjs";
import { run, served } from "./codex.mjs";
import { Key, NUMBER, URL, cost, micro } from "./gateway.mjs";

/** A model for each vendor format. */
const MODELS = ["demo-responses", "demo-chat", "demo-messages"];

const front = await Front.start(URL);
after(() => front.stop());
/**
 * The file as it is served, except that it has the proxy's address and enables the search that Codex offers by default.
 */
const CONFIG = (await served(URL, front)).replace('web_search = "disabled"\n', "");
const WITHOUT_LIST = CONFIG.replace(/^model_catalog_url.*\n/m, "");

/** Runs a task with a new key. */
async function codex(model, task, { config = CONFIG, ...more } = {}) {
  front.seen.length = 0;
  const key = await Key.create();
  return { key, ...(await run({ secret: key.secret, model, task, config, ...more })) };
}

/**
 * Checks that the recorded calls each cost what the catalog states, and that the key paid for nothing else. `usage` is
 * the sum that Codex reports.
 */
async function assertCharged(key, model, calls, usage) {
  const numbers = front.calls.map(({ number }) => number);
  assert.equal(numbers.length, calls);
  const receipts = await Promise.all(numbers.map((number) => key.receipt(number)));
  for (const { usage, charged_rub, estimated } of receipts) {
    assert.equal(micro(charged_rub), await cost(model, usage));
    assert.equal(estimated, false);
  }
  const sum = (name) => receipts.reduce((sum, { usage }) => sum + usage[name], 0);
  assert.deepEqual([sum("input"), sum("output")], [usage.input_tokens, usage.output_tokens]);
  await key.assertSpent(...receipts.map(({ charged_rub }) => micro(charged_rub)));
}

const call = (tool, input) => `run-tool ${tool} ${JSON.stringify(input)}`;

for (const model of MODELS) {
  test(`${model}: a question is answered without a warning`, async () => {
    const { key, code, printed } = await codex(model, "Привет, кодекс");
    assert.equal(code, 0, printed);
    assert.match(printed, /Вы написали: Привет, кодекс/);
    assert.doesNotMatch(printed, /warning|metadata|fallback/i);
    assert.equal(front.find("GET /v1/models?client_version=").status, 200);
    assert.ok((await key.spent()) > 0n);
  });

  test(`${model}: patches are applied and a command runs, and the charge is exact to the micro-ruble`, async () => {
    const patch = (...lines) => ({ input: ["*** Begin Patch", ...lines, "*** End Patch"].join("\n") });
    const task = [
      call("apply_patch", patch("*** Add File: птицы.txt", "+дрозд", "+сойка")),
      call("exec_command", { cmd: "wc -l < птицы.txt > число.txt; cat птицы.txt число.txt" }),
      call("apply_patch", patch("*** Update File: птицы.txt", "@@", " дрозд", "-сойка", "+зимо\"родок\"")),
    ].join(" ");
    const files = ["птицы.txt", "число.txt"];
    const { key, code, out, printed, made } = await codex(model, task, { files, options: ["--json"] });
    assert.equal(code, 0, printed);
    assert.deepEqual(made, ['дрозд\nзимо"родок"\n', "2\n"], printed);
    const events = out.trim().split("\n").map((line) => JSON.parse(line));
    const ended = events.find(({ type }) => type === "turn.completed");
    await assertCharged(key, model, 4, ended.usage);
    // The output of the command reached the vendor, and the model continued.
    const results = front.calls.at(-1).body.input.filter(({ type }) => /_output$/.test(type));
    assert.deepEqual(results.map(({ type }) => type), [
      "custom_tool_call_output",
      "function_call_output",
      "custom_tool_call_output",
    ]);
    assert.match(JSON.stringify(results[1].output), /дрозд\\+nсойка\\+n2/);
  });

  test(`${model}: Codex recognises the call of a function in a namespace`, async () => {
    const { code, printed } = await codex(model, call("multi_agent_v1__close_agent", { target: "nobody" }));
    assert.equal(code, 0, printed);
    const [output] = front.calls.at(-1).body.input.filter(({ type }) => type === "function_call_output");
    assert.ok(output, printed);
    assert.doesNotMatch(JSON.stringify(output), /unsupported call/);
    assert.match(printed, /Результат: /);
  });

  test(`${model}: a broken stream fails with its request number`, async () => {
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

test("without the list of models Codex warns, and still runs commands", async () => {
  const task = call("exec_command", { cmd: "echo hello-from-shell > made.txt; cat made.txt" });
  const { code, printed, made } = await codex(MODELS[1], task, { files: ["made.txt"], config: WITHOUT_LIST });
  assert.equal(code, 0, printed);
  assert.match(printed, /metadata for `demo-chat` not found/);
  assert.deepEqual(made, ["hello-from-shell\n"], printed);
});

test("Codex continues over HTTP after it tried a websocket", async () => {
  const config = CONFIG.replace("wire_api", "supports_websockets = true\nwire_api");
  const { code, printed } = await codex(MODELS[0], "Привет, кодекс", { config });
  assert.equal(code, 0, printed);
  assert.match(printed, /Вы написали: Привет, кодекс/);
  assert.equal(front.find("GET /v1/responses").status, 405);
  assert.equal(front.find("POST /v1/responses").status, 200);
});
