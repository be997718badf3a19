// Claude Code and Codex finish a tool task of five turns on strict chat vendors. One vendor refuses a call without the
// reasoning that led to it, the other refuses a call without the signature that the vendor gave it.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { join } from "node:path";
import { after, test } from "node:test";
import { ask, Front } from "./claude.mjs";
import { run, served } from "./codex.mjs";
import { startGateway } from "./replay.mjs";

const TURNS = 5;
const FILE = "шаги.txt";

/**
 * The state of a turn, by the model's name: the fields of the message in addition to its call, and the additional
 * fields of the call.
 */
const STATES = {
  thinking: (turn) => [{ reasoning_content: `мысль ${turn}` }, {}],
  signing: (turn) => [{}, { extra_content: { google: { thought_signature: `s${turn}+/==` } } }],
};

/** The reason why a vendor refuses the conversation; null if it does not. */
function refusal(model, messages) {
  const called = messages.filter(({ tool_calls }) => tool_calls);
  for (const [turn, message] of called.entries()) {
    const [fields, { extra_content }] = STATES[model](turn);
    const sent = { reasoning_content: message.reasoning_content, extra_content: message.tool_calls[0].extra_content };
    const expected = { reasoning_content: fields.reasoning_content, extra_content };
    if (JSON.stringify(sent) !== JSON.stringify(expected)) {
      return `turn ${turn}: ${JSON.stringify(sent)} instead of ${JSON.stringify(expected)}`;
    }
  }
  return null;
}

/** The client's tool that runs commands, and the arguments that run `text`; null if there is no such tool. */
function command(tools, text) {
  const names = (tools ?? []).map((tool) => tool.function.name);
  if (names.includes("Bash")) return ["Bash", { command: text, description: "шаг" }];
  return names.includes("exec_command") ? ["exec_command", { cmd: text }] : null;
}

const refused = [];
const server = createServer(async (req, res) => {
  const parts = [];
  for await (const part of req) parts.push(part);
  const { model, messages, tools } = JSON.parse(Buffer.concat(parts));
  const why = refusal(model, messages);
  if (why) {
    refused.push(why);
    res.writeHead(400, { "content-type": "application/json" }).end(JSON.stringify({ error: { message: why } }));
    return;
  }
  const turn = messages.filter(({ tool_calls }) => tool_calls).length;
  const run = turn + 1 < TURNS && command(tools, `echo ${turn} >> ${FILE}`);
  const deltas = [{ role: "assistant", content: "" }];
  if (run) {
    const [fields, more] = STATES[model](turn);
    if (fields.reasoning_content) deltas.push(fields);
    const [name, input] = run;
    const call = { index: 0, id: `call_${turn}`, type: "function", function: { name, arguments: "" }, ...more };
    deltas.push({ tool_calls: [call] });
    deltas.push({ tool_calls: [{ index: 0, function: { arguments: JSON.stringify(input) } }] });
  } else {
    deltas.push({ content: "Готово" });
  }
  // Claude Code treats messages with the same id as one message, so each turn has its own id.
  const id = `chatcmpl-${turn}`;
  const chunk = (choices, usage = null) =>
    `data: ${JSON.stringify({ id, object: "chat.completion.chunk", created: 1, model, choices, usage })}\n\n`;
  res.writeHead(200, { "content-type": "text/event-stream" });
  for (const delta of deltas) res.write(chunk([{ index: 0, delta, finish_reason: null }]));
  res.write(chunk([{ index: 0, delta: {}, finish_reason: run ? "tool_calls" : "stop" }]));
  res.write(chunk([], { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 }));
  res.end("data: [DONE]\n\n");
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const models = Object.keys(STATES);
const gateway = await startGateway(
  { url: `http://127.0.0.1:${server.address().port}` },
  models.map((name) => ({ name, format: "chat" })),
);
const front = await Front.start(gateway.url);
after(async () => {
  front.stop();
  await gateway.stop();
  server.closeAllConnections();
  server.close();
});
Object.assign(process.env, {
  TOLLGATE_URL: gateway.url,
  TOLLGATE_ADMIN_URL: gateway.admin,
  TOLLGATE_ADMIN_KEY: gateway.adminKey,
});
const { Key } = await import("./gateway.mjs");
const { secret } = await Key.create();
const STEPS = "0\n1\n2\n3\n";

for (const model of models) {
  for (const tokens of ["", "0"]) {
    test(`Claude Code on a ${model} vendor, thinking ${tokens === "0" ? "off" : "on"}`, async () => {
      refused.length = 0;
      let made;
      const report = await ask({
        url: front.url,
        model,
        text: "Сделай шаги",
        env: { ANTHROPIC_AUTH_TOKEN: secret, MAX_THINKING_TOKENS: tokens || "4096" },
        options: ["--allowedTools", "Bash"],
        after: async (home) => (made = await readFile(join(home, FILE), "utf8").catch(() => null)),
      });
      assert.deepEqual(refused, []);
      assert.deepEqual([report.is_error, report.result, made], [false, "Готово", STEPS], JSON.stringify(report));
    });
  }

  test(`Codex on a ${model} vendor`, async () => {
    refused.length = 0;
    const config = await served(gateway.url, front);
    const { code, printed, made } = await run({ secret, model, task: "Сделай шаги", config, files: [FILE] });
    assert.deepEqual(refused, []);
    assert.deepEqual([code, made], [0, [STEPS]], printed);
    assert.match(printed, /Готово/);
  });
}
