// The official `@anthropic-ai/sdk` package against a vendor of the messages format.

import assert from "node:assert/strict";
import { test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { URL, asker, collect, sharedPromises } from "./gateway.mjs";

const WEATHER = {
  name: "get_weather",
  description: "Погода в городе",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};
const user = (content) => ({ role: "user", content });

const suite = {
  sdk: Anthropic,
  model: "demo-messages",
  otherModel: "demo-chat",
  client: (apiKey, options) => new Anthropic({ apiKey, baseURL: URL, ...options }),
  ask: (client, text, params) => client.messages.create(request(text, params)),
  isWhole: async (stream) => (await collect(stream)).some((event) => event.type === "message_stop"),
  // `input_tokens` leaves out what was read from and written to the cache.
  classes: (usage) => ({
    input: usage.input_tokens,
    cached_input: usage.cache_read_input_tokens ?? 0,
    cache_write: usage.cache_creation_input_tokens ?? 0,
    output: usage.output_tokens,
  }),
};
const { ask } = suite;

function request(text = "Привет", params = {}) {
  return { model: suite.model, messages: [user(text)], max_tokens: 500, ...params };
}

function assertCalls(answer, count) {
  assert.equal(answer.stop_reason, "tool_use");
  const calls = answer.content.filter((part) => part.type === "tool_use");
  assert.equal(new Set(calls.map((call) => call.id)).size, count);
  for (const call of calls) assert.deepEqual([call.name, call.input], ["get_weather", { city: "Москва" }]);
  return calls;
}

/** The conversation after `calls` were made and done. */
function continued(text, calls) {
  const made = calls.map(({ type, id, name, input }) => ({ type, id, name, input }));
  const results = calls.map(({ id }) => ({ type: "tool_result", tool_use_id: id, content: "+7 и снег" }));
  return { messages: [user(text), { role: "assistant", content: made }, user(results)], tools: [WEATHER] };
}

test("a plain answer is charged by the catalog", async () => {
  const { key, wire, client, charged } = await asker(suite);
  const answer = await ask(client);
  assert.deepEqual([answer.type, answer.role, answer.stop_reason], ["message", "assistant", "end_turn"]);
  assert.ok(answer.id && answer.model);
  assert.equal(answer._request_id, wire.number);
  assert.deepEqual(answer.content.map(({ type, text }) => [type, text]), [["text", "Вы написали: Привет"]]);
  await key.assertSpent(await charged(answer.usage));
});

test("a streamed answer is the plain one and charged", async () => {
  const { key, client, charged } = await asker(suite);
  const text = "Расскажи, как сложить печь";
  const plain = await ask(client, text);
  const first = await charged(plain.usage);
  const texts = [];
  const stream = client.messages.stream(request(text)).on("text", (piece) => texts.push(piece));
  const answer = await stream.finalMessage();
  assert.equal(texts.join(""), plain.content[0].text);
  assert.equal(answer.content[0].text, plain.content[0].text);
  assert.ok(texts.length > 1, "the answer came in one piece");
  assert.equal(answer.stop_reason, "end_turn");
  await key.assertSpent(first, await charged(answer.usage));
});

test("the events of a stream come in order", async () => {
  const { client } = await asker(suite);
  const events = await collect(await ask(client, undefined, { stream: true }));
  const kinds = events.map((event) => event.type).filter((kind) => kind !== "ping");
  const deltas = kinds.filter((kind) => kind === "content_block_delta");
  assert.ok(deltas.length > 1);
  const tail = ["content_block_stop", "message_delta", "message_stop"];
  assert.deepEqual(kinds, ["message_start", "content_block_start", ...deltas, ...tail]);
});

for (const [kind, text, count] of [["a tool call", "Погода?", 1], ["parallel tool calls", "parallel: погода?", 2]]) {
  test(`${kind}, results and answer`, async () => {
    const { key, client, charged } = await asker(suite);
    const asked = await ask(client, text, { tools: [WEATHER] });
    const calls = assertCalls(asked, count);
    const first = await charged(asked.usage);
    const answer = await ask(client, text, continued(text, calls));
    assert.match(answer.content[0].text, /\+7 и снег/);
    await key.assertSpent(first, await charged(answer.usage));
  });

  test(`${kind}, results and answer, streamed`, async () => {
    const { key, client, charged } = await asker(suite);
    let fragments = 0;
    const stream = client.messages.stream(request(text, { tools: [WEATHER] }));
    stream.on("inputJson", (piece) => (fragments += piece ? 1 : 0));
    const asked = await stream.finalMessage();
    const calls = assertCalls(asked, count);
    assert.ok(fragments >= 2 * count, "arguments came in one piece");
    const first = await charged(asked.usage);
    const answer = await client.messages.stream(request(text, continued(text, calls))).finalMessage();
    assert.match(answer.content[0].text, /\+7 и снег/);
    await key.assertSpent(first, await charged(answer.usage));
  });
}

// The SDK first asks the vendor to keep the conversation; the refusal makes it send all of it.
test("the tool runner sends the whole conversation", async () => {
  const { client } = await asker(suite);
  const { name, description, input_schema: inputSchema } = WEATHER;
  const run = ({ city }) => `в городе ${city} +7 и снег`;
  const tool = betaTool({ name, description, inputSchema, run });
  const answer = await client.beta.messages.toolRunner(request("Погода?", { tools: [tool] }));
  assert.match(answer.content[0].text, /в городе Москва \+7 и снег/);
});

test("a key in x-api-key alone is taken", async () => {
  const { key, wire, client, charged } = await asker(suite);
  const headers = { "x-api-key": key.secret, authorization: null };
  const answer = await client.messages.create(request(), { headers });
  const sent = wire.requests.at(-1).headers;
  assert.deepEqual([sent.get("authorization"), sent.get("x-api-key")], [null, key.secret]);
  await key.assertSpent(await charged(answer.usage));
});

test("a key as auth token is taken", async () => {
  const { key, wire, client, charged } = await asker(suite);
  const answer = await client.withOptions({ apiKey: null, authToken: key.secret }).messages.create(request());
  assert.equal(wire.requests.at(-1).headers.get("authorization"), `Bearer ${key.secret}`);
  await key.assertSpent(await charged(answer.usage));
});

sharedPromises(suite);
