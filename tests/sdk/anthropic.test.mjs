// The official `@anthropic-ai/sdk` package with a vendor of the messages format, and with vendors of the other formats.

import assert from "node:assert/strict";
import { test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { URL, asker, collect, cutAt, forEachModel, sharedPromises } from "./gateway.mjs";

const WEATHER = {
  name: "get_weather",
  description: "Погода в городе",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};
const PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
/** Parameters without a counterpart in the chat format, and below them parameters that have one. */
const DROPPED = {
  top_k: 40,
  cache_control: { type: "ephemeral" },
  context_management: { edits: [] },
  service_tier: "auto",
  thinking: { type: "disabled" },
  output_config: { effort: "low" },
  metadata: { user_id: "sdk-tests" },
  temperature: 0.5,
  top_p: 0.9,
};
const user = (content) => ({ role: "user", content });

function assertCalls(answer, count) {
  assert.equal(answer.stop_reason, "tool_use");
  const calls = answer.content.filter((part) => part.type === "tool_use");
  assert.equal(new Set(calls.map((call) => call.id)).size, count);
  for (const call of calls) assert.deepEqual([call.name, call.input], ["get_weather", { city: "Москва" }]);
  return calls;
}

/** The conversation after these tool calls were made and answered. */
function continued(text, calls) {
  const made = calls.map(({ type, id, name, input }) => ({ type, id, name, input }));
  const results = calls.map(({ id }) => ({ type: "tool_result", tool_use_id: id, content: "+7 и снег" }));
  return { messages: [user(text), { role: "assistant", content: made }, user(results)], tools: [WEATHER] };
}

function weatherTool() {
  const { name, description, input_schema: inputSchema } = WEATHER;
  return betaTool({ name, description, inputSchema, run: ({ city }) => `в городе ${city} +7 и снег` });
}

/** Calls `model` with the `@anthropic-ai/sdk` package. */
function suiteFor({ model, otherModel, translated }) {
  const request = (text = "Привет", params = {}) => ({ model, messages: [user(text)], max_tokens: 500, ...params });
  return {
    sdk: Anthropic,
    model,
    otherModel,
    translated,
    dropped: DROPPED,
    request,
    client: (apiKey, options) => new Anthropic({ apiKey, baseURL: URL, ...options }),
    ask: (client, text, params) => client.messages.create(request(text, params)),
    isWhole: async (stream) => (await collect(stream)).some((event) => event.type === "message_stop"),
    // `input_tokens` does not include tokens read from and written to the cache.
    classes: (usage) => ({
      input: usage.input_tokens,
      cached_input: usage.cache_read_input_tokens ?? 0,
      cache_write: usage.cache_creation_input_tokens ?? 0,
      output: usage.output_tokens,
    }),
  };
}

forEachModel("messages", (names) => {
  const suite = suiteFor(names);
  const { ask, request } = suite;

  test("a plain answer is charged at the catalog's prices", async () => {
    const { key, wire, client, charged } = await asker(suite);
    const answer = await ask(client);
    assert.deepEqual([answer.type, answer.role, answer.stop_reason], ["message", "assistant", "end_turn"]);
    assert.ok(answer.id && answer.model);
    assert.equal(answer._request_id, wire.number);
    assert.deepEqual(answer.content.map(({ type, text }) => [type, text]), [["text", "Вы написали: Привет"]]);
    await key.assertSpent(await charged(answer.usage));
  });

  test("a streamed answer equals the plain one and is charged", async () => {
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

  test("the events of a stream arrive in order", async () => {
    const { client } = await asker(suite);
    const events = await collect(await ask(client, undefined, { stream: true }));
    const kinds = events.map((event) => event.type).filter((kind) => kind !== "ping");
    const deltas = kinds.filter((kind) => kind === "content_block_delta");
    assert.ok(deltas.length > 1);
    const tail = ["content_block_stop", "message_delta", "message_stop"];
    assert.deepEqual(kinds, ["message_start", "content_block_start", ...deltas, ...tail]);
    const [{ message }] = events;
    assert.deepEqual([message.content, message.stop_reason, message.stop_sequence], [[], null, null]);
    const end = events.find((event) => event.type === "message_delta");
    // A chat vendor reports usage at the end: until then the input is 0, and the last event has all counts.
    if (suite.translated) assert.deepEqual([message.usage.input_tokens, end.usage.input_tokens > 0], [0, true]);
    else assert.ok(message.usage.input_tokens > 0);
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

  // The SDK first requests that the vendor store the conversation. The refusal makes it send the whole conversation.
  test("the tool runner sends the whole conversation", async () => {
    const { client } = await asker(suite);
    const answer = await client.beta.messages.toolRunner(request("Погода?", { tools: [weatherTool()] }));
    assert.match(answer.content[0].text, /в городе Москва \+7 и снег/);
  });

  test("the tool runner sends the whole conversation, streamed", async () => {
    const { client } = await asker(suite);
    const runner = client.beta.messages.toolRunner(request("Погода?", { tools: [weatherTool()], stream: true }));
    const answers = [];
    for await (const stream of runner) answers.push(await stream.finalMessage());
    assert.deepEqual(answers.map((answer) => answer.stop_reason), ["tool_use", "end_turn"]);
    assert.match(answers[1].content[0].text, /в городе Москва \+7 и снег/);
  });

  test("a key is accepted in x-api-key alone", async () => {
    const { key, wire, client, charged } = await asker(suite);
    const headers = { "x-api-key": key.secret, authorization: null };
    const answer = await client.messages.create(request(), { headers });
    const sent = wire.requests.at(-1).headers;
    assert.deepEqual([sent.get("authorization"), sent.get("x-api-key")], [null, key.secret]);
    await key.assertSpent(await charged(answer.usage));
  });

  test("a key is accepted as an auth token", async () => {
    const { key, wire, client, charged } = await asker(suite);
    const answer = await client.withOptions({ apiKey: null, authToken: key.secret }).messages.create(request());
    assert.equal(wire.requests.at(-1).headers.get("authorization"), `Bearer ${key.secret}`);
    await key.assertSpent(await charged(answer.usage));
  });

  test("an answer that reaches max_tokens has that stop reason", async () => {
    const { key, client, charged } = await asker(suite);
    const [text, cut] = cutAt(names.tokensMax);
    const params = { max_tokens: names.tokensMax };
    const plain = await ask(client, text, params);
    assert.deepEqual([plain.content[0].text, plain.stop_reason], [cut, "max_tokens"]);
    const first = await charged(plain.usage);
    const answer = await client.messages.stream(request(text, params)).finalMessage();
    assert.deepEqual([answer.content[0].text, answer.stop_reason], [cut, "max_tokens"]);
    await key.assertSpent(first, await charged(answer.usage));
  });

  test("an answer ends before a stop sequence", async () => {
    const { key, client } = await asker(suite);
    const [text, params] = ["до СТОП после", { stop_sequences: ["другое", "СТОП"] }];
    if (!names.stops) {
      await assert.rejects(ask(client, text, params), (error) => error.status === 400 && /«stop_sequences»/.test(error.message));
      await key.assertSpent();
      return;
    }
    // Chat vendors report neither which stop sequence matched nor that one did.
    const end = suite.translated ? ["end_turn", null] : ["stop_sequence", "СТОП"];
    const plain = await ask(client, text, params);
    const streamed = await client.messages.stream(request(text, params)).finalMessage();
    for (const { content, stop_reason, stop_sequence } of [plain, streamed]) {
      assert.equal(content[0].text, "Вы написали: до ");
      assert.deepEqual([stop_reason, stop_sequence], end);
    }
  });

  test("instructions reach the model, as one text or as blocks", async () => {
    const { client } = await asker(suite);
    const told = async (system) => (await ask(client, "say-system", { system })).content[0].text;
    assert.equal(await told("Ты краток."), "Система: Ты краток.");
    const blocks = [
      { type: "text", text: "Ты краток.", cache_control: { type: "ephemeral" } },
      { type: "text", text: "Отвечай по-русски." },
    ];
    assert.match(await told(blocks), /^Система: Ты краток\.\n+Отвечай по-русски\.$/);
  });

  test("instructions in the middle of a conversation reach the model", async () => {
    const { client } = await asker(suite);
    const messages = [user("Привет"), { role: "system", content: "Отвечай по-русски." }, user("say-system")];
    const answer = await ask(client, undefined, { messages });
    assert.equal(answer.content[0].text, "Система: Отвечай по-русски.");
  });

  test("an image is sent together with a text", async () => {
    const { client } = await asker(suite);
    const image = { type: "image", source: { type: "base64", media_type: "image/png", data: PIXEL } };
    const answer = await ask(client, undefined, { messages: [user([image, { type: "text", text: "Что это?" }])] });
    assert.equal(answer.content[0].text, "Вы написали: Что это?");
  });

  test("the error of a tool reaches the model", async () => {
    const { client } = await asker(suite);
    const calls = assertCalls(await ask(client, "Погода?", { tools: [WEATHER] }), 1);
    const { messages, tools } = continued("Погода?", calls);
    Object.assign(messages.at(-1).content[0], { content: "нет связи", is_error: true });
    const answer = await ask(client, undefined, { messages, tools });
    assert.match(answer.content[0].text, /^Результат: [^]*нет связи/);
  });

  test("counting tokens is free", async () => {
    const { key, client } = await asker(suite);
    const { max_tokens, ...counted } = request("Посчитай это", { system: "Ты краток.", tools: [WEATHER] });
    assert.ok((await client.messages.countTokens(counted)).input_tokens > 0);
    assert.ok((await client.beta.messages.countTokens(counted)).input_tokens > 0);
    await key.assertSpent();
  });

  sharedPromises(suite);
});
