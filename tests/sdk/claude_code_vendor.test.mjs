// Claude Code with a vendor that refuses, behind a separate gateway: which calls it repeats, and what it changes in
// them. Also the models that it offers to its users.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { join } from "node:path";
import { after, test } from "node:test";
import { ask, Front } from "./claude.mjs";
import { startGateway } from "./replay.mjs";

const MODEL = "claude-of-the-tests";

/** A vendor of the messages format. It first gives the refusals in `refusals`, one per request, and then answers. */
const vendor = {
  refusals: [],
  received: [],
  async answer(req, res) {
    const parts = [];
    for await (const part of req) parts.push(part);
    const body = JSON.parse(Buffer.concat(parts));
    vendor.received.push({ headers: req.headers, body });
    const refusal = vendor.refusals.shift();
    if (refusal) {
      const [status, message, headers = {}] = refusal;
      const error = { type: "error", error: { type: "invalid_request_error", message } };
      res.writeHead(status, { "content-type": "application/json", ...headers }).end(JSON.stringify(error));
      return;
    }
    const usage = { input_tokens: 10, cache_creation_input_tokens: 0, cache_read_input_tokens: 0, output_tokens: 1 };
    const message = { id: "msg_1", type: "message", role: "assistant", model: body.model, content: [], usage };
    const events = [
      { type: "message_start", message: { ...message, stop_reason: null, stop_sequence: null } },
      { type: "content_block_start", index: 0, content_block: { type: "text", text: "" } },
      { type: "content_block_delta", index: 0, delta: { type: "text_delta", text: "Готово" } },
      { type: "content_block_stop", index: 0 },
      { type: "message_delta", delta: { stop_reason: "end_turn", stop_sequence: null }, usage: { output_tokens: 2 } },
      { type: "message_stop" },
    ];
    res.writeHead(200, { "content-type": "text/event-stream" });
    res.end(events.map((event) => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`).join(""));
  },
};
const server = createServer(vendor.answer);
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const gateway = await startGateway({ url: `http://127.0.0.1:${server.address().port}` }, [
  { name: MODEL, format: "messages", fields: 'display_name = "Клод"\ndescription = "Для кода"' },
  { name: "claude-plain", format: "messages" },
  { name: "another", format: "messages" },
]);
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
const { Key, NUMBER } = await import("./gateway.mjs");
const key = await Key.create();

/** Runs Claude Code while the vendor gives these refusals first. */
async function claude(refusals, { env = { ANTHROPIC_AUTH_TOKEN: key.secret }, ...more } = {}) {
  Object.assign(vendor, { refusals: [...refusals], received: [] });
  front.seen.length = 0;
  return ask({ url: front.url, model: MODEL, text: "Привет", env, ...more });
}

/** Runs Claude Code, and checks that its second call is answered after the first was refused. */
async function answeredAgain(refusal) {
  const report = await claude([refusal]);
  assert.deepEqual([report.is_error, report.result], [false, "Готово"], JSON.stringify(report));
  assert.deepEqual([front.calls.map(({ status }) => status).length, front.calls.at(-1).status], [2, 200]);
  return vendor.received;
}

test("Claude Code checks that the gateway is reachable, and finds its models with their prices", async () => {
  let offered;
  const report = await claude([], {
    env: {
      ANTHROPIC_AUTH_TOKEN: key.secret,
      ANTHROPIC_API_KEY: key.secret,
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "",
      CLAUDE_CODE_ENABLE_GATEWAY_MODEL_DISCOVERY: "1",
    },
    after: async (home) => {
      offered = JSON.parse(await readFile(join(home, ".claude/cache/gateway-models.json"), "utf8"));
    },
  });
  assert.equal(report.is_error, false, report.result);
  const hello = front.find("HEAD /api/hello");
  assert.equal(hello.status, 200);
  assert.deepEqual([hello.headers.authorization, hello.headers["x-api-key"]], [undefined, undefined]);
  const discovery = front.find("GET /v1/models?limit=1000");
  assert.equal(discovery.status, 200);
  const { authorization, "x-api-key": apiKey } = discovery.headers;
  assert.deepEqual([authorization, apiKey], [`Bearer ${key.secret}`, key.secret]);
  const price = "Вход 104,08\u{a0}₽, выход 520,38\u{a0}₽ за 1 млн токенов";
  assert.deepEqual(offered.models, [
    { id: MODEL, display_name: "Клод", description: `Для кода. ${price}` },
    { id: "claude-plain", display_name: "claude-plain", description: price },
  ]);
});

test("a beta that the vendor refuses is left out of the repeated call", async () => {
  const beta = "context-management-2025-06-27";
  const message = `Unexpected value(s) \`${beta}\` for the \`anthropic-beta\` header. Please consult our documentation.`;
  const betas = (await answeredAgain([400, message])).map(({ headers }) => headers["anthropic-beta"].split(","));
  assert.deepEqual(betas.map((sent) => sent.includes(beta)), [true, false]);
});

test("if input and max_tokens exceed the context window, the repeated call requests fewer tokens", async () => {
  const message = "input length and `max_tokens` exceed context limit: 188000 + 32000 > 200000, decrease input length";
  const received = await answeredAgain([400, message]);
  assert.equal(received[1].body.max_tokens, 200_000 - 188_000 - 1000);
});

test("thinking in a way that the model refuses is requested in another way, or not at all", async () => {
  const type = (body) => body.thinking?.type;
  const message = '"thinking.type.adaptive" is not supported for this model.';
  const received = await answeredAgain([400, message]);
  assert.notEqual(type(received[1].body), type(received[0].body));
});

for (const [status, headers] of [
  [429, { "retry-after": "1" }],
  [503, {}],
]) {
  test(`after a vendor's ${status}, Claude Code waits and repeats the call`, async () => {
    const started = performance.now();
    await answeredAgain([status, "slow down", headers]);
    const [refused] = front.calls;
    assert.equal(refused.status, status);
    assert.ok(performance.now() - started >= 1000);
  });
}

for (const [message, says] of [
  ["prompt is too long: 210000 tokens > 200000 maximum", /^Prompt is too long/],
  ["Input is too long.", /Request too large|Prompt is too long/],
  ["This model's maximum context length is 65536 tokens. However, you requested 70000 tokens.", /Prompt is too long/],
  ["messages.0.content.0.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes", /^Image was too large/],
  ["temperature: unknown", new RegExp(`^API Error: 400 temperature: unknown — [^]* \\((${NUMBER.source})\\)$`)],
]) {
  test(`"${message}" is recognised as a vendor's message`, async () => {
    const report = await claude(Array(20).fill([400, message]));
    assert.deepEqual([report.is_error, report.api_error_status], [true, 400], report.result);
    assert.match(report.result, says);
    // If the tool does not recognise an error, it repeats the call without some of its fields.
    assert.ok(front.calls.length <= 6, `asked ${front.calls.length} times`);
  });
}
