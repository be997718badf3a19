// Responses in the official `openai` package, with a vendor of the responses format, or of the format of the model that
// MODEL names.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { Key, NUMBER, URL, Wire } from "./gateway.mjs";

const model = process.env.MODEL ?? "demo-responses";
const WEATHER = {
  type: "function",
  name: "get_weather",
  description: "Погода в городе",
  strict: false,
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};
const CUT = "vendor-cut: " + "обрыв на полуслове ".repeat(8);

async function client() {
  return (await asker()).client;
}

/** A client with a new key, which records its requests and answers. */
async function asker() {
  const [key, wire] = [await Key.create(), new Wire()];
  const client = new OpenAI({ apiKey: key.secret, baseURL: `${URL}/v1`, fetch: wire.fetch, maxRetries: 0 });
  const charged = ({ input_tokens, input_tokens_details: details, output_tokens: output }) => {
    const [cached_input, cache_write] = [details.cached_tokens, details.cache_write_tokens ?? 0];
    const usage = { input: input_tokens - cached_input - cache_write, cached_input, cache_write, output };
    return key.assertCharged(wire.number, model, usage);
  };
  return { client, key, charged };
}

async function gathered(events) {
  const types = [];
  for await (const event of events) types.push(event.type);
  return types;
}

test("the streaming helper collects the plain answer, and both calls are charged", async () => {
  const { client, key, charged } = await asker();
  const request = { model, input: "Расскажи, как сложить печь", max_output_tokens: 500 };
  const plain = await client.responses.create(request);
  assert.equal(plain.output_text, "Вы написали: Расскажи, как сложить печь");
  const first = await charged(plain.usage);
  const stream = client.responses.stream(request);
  const types = await gathered(stream);
  assert.deepEqual([types.at(0), types.at(-1)], ["response.created", "response.completed"]);
  const final = await stream.finalResponse();
  assert.deepEqual([final.output_text, final.usage], [plain.output_text, plain.usage]);
  await key.assertSpent(first, await charged(final.usage));
});

test("an answer with a requested schema is parsed", async () => {
  const { client, key, charged } = await asker();
  const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false };
  const format = { type: "json_schema", name: "place", strict: true, schema };
  const answer = await client.responses.parse({ model, input: `say-json ${JSON.stringify({ city: "Москва" })}`, max_output_tokens: 500, text: { format } });
  assert.deepEqual(answer.output_parsed, { city: "Москва" });
  await key.assertSpent(await charged(answer.usage));
});

for (const [text, count] of [["Погода?", 1], ["parallel: погода?", 2]]) {
  test(`tools are called and their results reach the model: ${count}`, async () => {
    const asker = await client();
    for (const streamed of [false, true]) {
      const answered = async (input) => {
        const request = { model, input, tools: [WEATHER], max_output_tokens: 500 };
        if (!streamed) return asker.responses.create(request);
        const stream = asker.responses.stream(request);
        await gathered(stream);
        return stream.finalResponse();
      };
      const turns = [{ role: "user", content: text }];
      const { output } = await answered(turns);
      assert.equal(new Set(output.map((call) => call.call_id)).size, count);
      for (const call of output) assert.deepEqual(JSON.parse(call.arguments), { city: "Москва" });
      const results = output.map(({ call_id }) => ({ type: "function_call_output", call_id, output: "+7 и снег" }));
      const final = await answered([...turns, ...output, ...results]);
      assert.match(final.output_text, /\+7 и снег/);
    }
  });
}

test("a reference to stored state is 400 and named", async () => {
  const asker = await client();
  for (const fields of [{ previous_response_id: "resp_1" }, { store: true }, { background: true }]) {
    await assert.rejects(asker.responses.create({ model, input: "Привет", ...fields }), (error) => {
      assert.deepEqual([error.status, error.code], [400, "state_unsupported"]);
      assert.match(error.message, new RegExp(`«${Object.keys(fields)[0]}»`));
      return true;
    });
  }
});

test("a cut stream does not look complete, and its error has the request number", async () => {
  const asker = await client();
  const streams = [
    async () => gathered(asker.responses.stream({ model, input: CUT })),
    async () => gathered(await asker.responses.create({ model, input: CUT, stream: true })),
  ];
  for (const stream of streams) {
    await assert.rejects(stream, (error) => {
      assert.ok(error instanceof OpenAI.APIError, error);
      assert.match(error.message, NUMBER);
      return true;
    });
  }
});
