// The official `openai` package with a vendor of the chat format, and with vendors of the other formats.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import OpenAI from "openai";
import { URL, asker, cutAt, forEachModel, sharedPromises } from "./gateway.mjs";

const WEATHER = {
  type: "function",
  function: {
    name: "get_weather",
    description: "Погода в городе",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};
const PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
/** Parameters without a counterpart in the messages format, and below them parameters that have one. */
const DROPPED = {
  seed: 7,
  store: false,
  metadata: { department: "sales" },
  logit_bias: { 50256: -100 },
  frequency_penalty: 0.5,
  presence_penalty: 0.5,
  verbosity: "low",
  prompt_cache_key: "sdk-tests",
  user: "sdk-tests",
  temperature: 0.5,
  top_p: 0.9,
  reasoning_effort: "low",
  response_format: { type: "text" },
};
const streamed = { stream: true, stream_options: { include_usage: true } };
const user = (content) => ({ role: "user", content });
const results = (calls) => calls.map(({ id }) => ({ role: "tool", tool_call_id: id, content: "+7 и снег" }));

/** The texts, tool calls, fragments of arguments, finish reason and usages in a stream. */
async function read(stream) {
  const seen = { texts: [], calls: [], fragments: 0, finish: null, usages: [], ids: new Set() };
  for await (const chunk of stream) {
    assert.equal(chunk.object, "chat.completion.chunk");
    seen.ids.add(chunk.id);
    if (chunk.usage) seen.usages.push(chunk.usage);
    for (const { delta, finish_reason } of chunk.choices) {
      seen.finish = finish_reason ?? seen.finish;
      if (delta.content) seen.texts.push(delta.content);
      for (const { index, id, function: fn } of delta.tool_calls ?? []) {
        seen.calls[index] ??= { id, type: "function", function: { name: fn.name, arguments: "" } };
        seen.calls[index].function.arguments += fn?.arguments ?? "";
        seen.fragments += fn?.arguments ? 1 : 0;
      }
    }
  }
  assert.equal(seen.ids.size, 1, "chunks of one answer with different ids");
  return seen;
}

function assertCalls(calls, count) {
  assert.equal(new Set(calls.map((call) => call.id)).size, count);
  for (const call of calls) {
    assert.deepEqual([call.type, call.function.name], ["function", "get_weather"]);
    assert.deepEqual(JSON.parse(call.function.arguments), { city: "Москва" });
  }
}

/** Calls `model` with the `openai` package. */
function suiteFor({ model, otherModel, translated }) {
  return {
    sdk: OpenAI,
    model,
    otherModel,
    translated,
    dropped: DROPPED,
    client: (apiKey, options) => new OpenAI({ apiKey, baseURL: `${URL}/v1`, ...options }),
    ask: (client, text = "Привет", params = {}) =>
      client.chat.completions.create({ model, messages: [user(text)], max_tokens: 500, ...params }),
    isWhole: async (stream) => (await read(stream)).finish !== null,
    // `prompt_tokens` includes tokens read from and written to the cache.
    classes(usage) {
      const cached_input = usage.prompt_tokens_details?.cached_tokens ?? 0;
      const cache_write = usage.prompt_tokens_details?.cache_write_tokens ?? 0;
      const input = usage.prompt_tokens - cached_input - cache_write;
      return { input, cached_input, cache_write, output: usage.completion_tokens };
    },
  };
}

forEachModel("chat", (names) => {
  const suite = suiteFor(names);
  const { ask } = suite;

  test("a plain answer is charged at the catalog's prices", async () => {
    const { key, wire, client, charged } = await asker(suite);
    const answer = await ask(client);
    assert.equal(answer.object, "chat.completion");
    assert.ok(answer.id && answer.model && Number.isInteger(answer.created));
    assert.equal(answer._request_id, wire.number);
    const [{ index, message, finish_reason }] = answer.choices;
    assert.deepEqual([index, message.role, finish_reason], [0, "assistant", "stop"]);
    assert.equal(message.content, "Вы написали: Привет");
    assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
    await key.assertSpent(await charged(answer.usage));
  });

  test("a streamed answer equals the plain one and is charged", async () => {
    const { key, client, charged } = await asker(suite);
    const text = "Расскажи, как сложить печь";
    const plain = await ask(client, text);
    const first = await charged(plain.usage);
    const { texts, finish, usages } = await read(await ask(client, text, streamed));
    assert.equal(texts.join(""), plain.choices[0].message.content);
    assert.ok(texts.length > 1, "the answer came in one piece");
    assert.deepEqual([finish, usages.length], ["stop", 1]);
    await key.assertSpent(first, await charged(usages[0]));
  });

  test("a stream has no usage unless requested, and is charged nevertheless", async () => {
    const { key, client, charged } = await asker(suite);
    const plain = await ask(client);
    const first = await charged(plain.usage);
    for await (const chunk of await ask(client, undefined, { stream: true })) {
      assert.ok(chunk.choices.length > 0, "a chunk without choices that nobody asked for");
      assert.ok(!chunk.usage, "usage that nobody asked for");
    }
    await key.assertSpent(first, await charged(plain.usage));
  });

  for (const [kind, text, count] of [["a tool call", "Погода?", 1], ["parallel tool calls", "parallel: погода?", 2]]) {
    test(`${kind}, results and answer`, async () => {
      const { key, client, charged } = await asker(suite);
      const asked = await ask(client, text, { tools: [WEATHER] });
      const [{ message, finish_reason }] = asked.choices;
      assert.equal(finish_reason, "tool_calls");
      assertCalls(message.tool_calls, count);
      const first = await charged(asked.usage);
      const messages = [user(text), message, ...results(message.tool_calls)];
      const answer = await ask(client, text, { messages, tools: [WEATHER] });
      assert.match(answer.choices[0].message.content, /\+7 и снег/);
      assert.equal(answer.choices[0].finish_reason, "stop");
      await key.assertSpent(first, await charged(answer.usage));
    });

    test(`${kind}, results and answer, streamed`, async () => {
      const { key, client, charged } = await asker(suite);
      const stream = await ask(client, text, { tools: [WEATHER], ...streamed });
      const { calls, fragments, finish, usages } = await read(stream);
      assert.equal(finish, "tool_calls");
      assertCalls(calls, count);
      assert.ok(fragments >= 2 * count, "arguments came in one piece");
      const first = await charged(usages.at(-1));
      const messages = [user(text), { role: "assistant", tool_calls: calls }, ...results(calls)];
      const answer = await read(await ask(client, text, { messages, tools: [WEATHER], ...streamed }));
      assert.match(answer.texts.join(""), /\+7 и снег/);
      assert.equal(answer.finish, "stop");
      await key.assertSpent(first, await charged(answer.usages.at(-1)));
    });
  }

  test("the tool loop helper gets an answer", async () => {
    const { wire, client } = await asker(suite);
    assert.match(await toolLoop(client).finalContent(), /в городе Москва \+7 и снег/);
    assert.equal(wire.requests.length, 2);
  });

  test("the tool loop helper gets a streamed answer", async () => {
    const { wire, client } = await asker(suite);
    const loop = toolLoop(client, streamed);
    const texts = [];
    loop.on("content", (piece) => texts.push(piece));
    assert.match(await loop.finalContent(), /в городе Москва \+7 и снег/);
    assert.match(texts.join(""), /в городе Москва \+7 и снег/);
    assert.equal(wire.requests.length, 2);
    assert.ok((await loop.totalUsage()).completion_tokens > 0);
  });

  function toolLoop(client, params = {}) {
    const run = ({ city }) => `в городе ${city} +7 и снег`;
    const tool = { ...WEATHER, function: { ...WEATHER.function, parse: JSON.parse, function: run } };
    return client.chat.completions.runTools({
      model: suite.model,
      messages: [user("Погода?")],
      max_tokens: 500,
      tools: [tool],
      ...params,
    });
  }

  test("the streaming helper collects the whole answer", async () => {
    const { key, client, charged } = await asker(suite);
    const { stream, ...params } = streamed;
    const request = { model: suite.model, messages: [user("Привет")], max_tokens: 500, ...params };
    const answer = await client.chat.completions.stream(request).finalChatCompletion();
    const [{ message, finish_reason }] = answer.choices;
    assert.deepEqual([message.role, message.content, finish_reason], ["assistant", "Вы написали: Привет", "stop"]);
    await key.assertSpent(await charged(answer.usage));
  });

  for (const name of ["max_tokens", "max_completion_tokens"]) {
    test(`an answer that reaches ${name} has the finish reason length`, async () => {
      const { key, client, charged } = await asker(suite);
      const [text, cut] = cutAt(names.tokensMax);
      const params = { max_tokens: undefined, [name]: names.tokensMax };
      const plain = await ask(client, text, params);
      const [{ message, finish_reason }] = plain.choices;
      assert.deepEqual([message.content, finish_reason], [cut, "length"]);
      const first = await charged(plain.usage);
      const { texts, finish, usages } = await read(await ask(client, text, { ...params, ...streamed }));
      assert.deepEqual([texts.join(""), finish], [cut, "length"]);
      await key.assertSpent(first, await charged(usages.at(-1)));
    });
  }

  test("an answer without an output maximum is complete", async () => {
    const { key, client, charged } = await asker(suite);
    const answer = await ask(client, undefined, { max_tokens: undefined });
    assert.equal(answer.choices[0].finish_reason, "stop");
    await key.assertSpent(await charged(answer.usage));
  });

  for (const [which, stop] of [["the stop sequence", "СТОП"], ["one of several stop sequences", ["другое", "СТОП"]]]) {
    test(`an answer ends before ${which}`, async () => {
      const { key, client } = await asker(suite);
      if (!names.stops) {
        await assert.rejects(ask(client, "до СТОП после", { stop }), (error) => error.status === 400 && /«stop»/.test(error.message));
        await key.assertSpent();
        return;
      }
      const plain = await ask(client, "до СТОП после", { stop });
      const [{ message, finish_reason }] = plain.choices;
      assert.deepEqual([message.content, finish_reason], ["Вы написали: до ", "stop"]);
      const { texts, finish } = await read(await ask(client, "до СТОП после", { stop, ...streamed }));
      assert.deepEqual([texts.join(""), finish], ["Вы написали: до ", "stop"]);
    });
  }

  test("instructions reach the model in order", async () => {
    const { client } = await asker(suite);
    const messages = [
      { role: "system", content: "Ты краток." },
      { role: "developer", content: [{ type: "text", text: "Отвечай по-русски." }] },
      user("say-system"),
    ];
    const answer = await ask(client, undefined, { messages });
    assert.equal(answer.choices[0].message.content, "Система: Ты краток.\nОтвечай по-русски.");
  });

  test("an image is sent together with a text", async () => {
    const { client } = await asker(suite);
    const image = { type: "image_url", image_url: { url: `data:image/png;base64,${PIXEL}`, detail: "low" } };
    const answer = await ask(client, undefined, { messages: [user([image, { type: "text", text: "Что это?" }])] });
    assert.equal(answer.choices[0].message.content, "Вы написали: Что это?");
  });

  test("more than one choice is returned or refused", async () => {
    const { key, client } = await asker(suite, { maxRetries: 0 });
    const asked = ask(client, undefined, { n: 2 });
    // The messages format has only one choice, so the gateway must refuse and not silently return one.
    if (suite.translated) {
      await assert.rejects(asked, (error) => error instanceof OpenAI.BadRequestError && /\bn\b/.test(error.message));
      await key.assertSpent();
    } else {
      await asked;
    }
  });

  sharedPromises(suite);
});

describe("embeddings:", () => {
  const model = "demo-embedding";
  const suite = { client: (apiKey, options) => new OpenAI({ apiKey, baseURL: `${URL}/v1`, maxRetries: 0, ...options }) };
  /** The floats of a vector. If base64 was requested explicitly, the package does not decode it. */
  const decoded = (vector) => {
    if (typeof vector !== "string") return [...vector];
    const bytes = Buffer.from(vector, "base64");
    return Array.from({ length: bytes.length / 4 }, (_, at) => bytes.readFloatLE(4 * at));
  };

  test("vectors are the same in base64 and as floats, and charged", async () => {
    const { key, wire, client } = await asker(suite);
    const charges = [];
    for (const input of ["Привет", ["Привет", "мир"], [1, 2, 3], [[1, 2], [3]]]) {
      const vectors = [];
      for (const more of [{}, { encoding_format: "float" }, { encoding_format: "base64" }]) {
        const answer = await client.embeddings.create({ model, input, ...more });
        vectors.push(answer.data.map(({ embedding }) => decoded(embedding)));
        const usage = { input: answer.usage.prompt_tokens, cached_input: 0, cache_write: 0, output: 0 };
        charges.push(await key.assertCharged(wire.number, model, usage));
      }
      assert.ok(vectors[0].length > 0 && vectors[0].every((vector) => vector.length === 3));
      assert.deepEqual(vectors[0], vectors[1]);
      assert.deepEqual(vectors[0], vectors[2]);
    }
    await key.assertSpent(...charges);
  });

  test("`dimensions` sets the length of a vector", async () => {
    const { client } = await asker(suite);
    const answer = await client.embeddings.create({ model, input: "Привет", dimensions: 8, user: "sdk-tests" });
    assert.equal(answer.data[0].embedding.length, 8);
  });

  test("a chat model is refused for embeddings", async () => {
    const { key, client } = await asker(suite);
    const asked = client.embeddings.create({ model: "demo-chat", input: "Привет" });
    const says = (error) => error instanceof OpenAI.BadRequestError && error.message.includes("/v1/chat/completions");
    await assert.rejects(asked, says);
    await key.assertSpent();
  });

  test("models show their kind and their paths", async () => {
    const { client } = await asker(suite);
    const told = {};
    for await (const { id, kind, surfaces } of client.models.list()) told[id] = { kind, surfaces };
    assert.deepEqual(told[model], { kind: "embedding", surfaces: ["/v1/embeddings"] });
    assert.equal(told["demo-chat"].kind, "chat");
    assert.ok(told["demo-chat"].surfaces.includes("/v1/chat/completions"));
  });
});
