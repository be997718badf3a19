// The Vercel AI SDK, whose OpenAI provider uses the responses format by default, with a vendor of each format.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { createOpenAI } from "@ai-sdk/openai";
import { APICallError, Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { Key, NUMBER, URL, Wire, collect } from "./gateway.mjs";

/** Unless the SDK is configured not to store answers, it refers to earlier answers only by their ids. */
const OPTIONS = { openai: { store: false } };
const WEATHER = {
  get_weather: tool({
    description: "Погода в городе",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `${city}: +7 и снег`,
  }),
};

for (const name of ["demo-responses", "demo-chat", "demo-messages"]) {
  describe(`${name}:`, () => {
    async function asker() {
      const [key, wire] = [await Key.create(), new Wire()];
      const model = createOpenAI({ apiKey: key.secret, baseURL: `${URL}/v1`, fetch: wire.fetch })(name);
      const charged = (usage) =>
        key.assertCharged(wire.number, name, {
          input: usage.inputTokens,
          cached_input: 0,
          cache_write: 0,
          output: usage.outputTokens,
        });
      return { key, wire, charged, request: { model, maxRetries: 0, maxOutputTokens: 500, providerOptions: OPTIONS } };
    }

    test("a plain answer is read and charged", async () => {
      const { key, wire, charged, request } = await asker();
      const { text, usage, finishReason } = await generateText({ ...request, prompt: "Привет" });
      assert.deepEqual([text, finishReason], ["Вы написали: Привет", "stop"]);
      assert.ok(wire.requests.at(-1).url.endsWith("/v1/responses"));
      await key.assertSpent(await charged(usage));
    });

    test("a streamed answer has the same text and charge as a plain one", async () => {
      const { key, charged, request } = await asker();
      const stream = streamText({ ...request, system: "Отвечай коротко", prompt: "Расскажи, как сложить печь" });
      const pieces = await collect(stream.textStream);
      assert.equal(pieces.join(""), "Вы написали: Расскажи, как сложить печь");
      assert.ok(pieces.length > 1, "the answer came in one piece");
      assert.equal(await stream.finishReason, "stop");
      await key.assertSpent(await charged(await stream.usage));
    });

    for (const [prompt, count] of [["Погода?", 1], ["parallel: погода?", 2]]) {
      test(`tools run and their results reach the model: ${count}`, async () => {
        const { request } = await asker();
        const loop = { ...request, prompt, tools: WEATHER, stopWhen: stepCountIs(3) };
        const stream = streamText(loop);
        await collect(stream.fullStream);
        for (const { steps, text } of [await generateText(loop), { steps: await stream.steps, text: await stream.text }]) {
          assert.deepEqual(steps.map(({ toolCalls }) => toolCalls.length), [count, 0]);
          assert.deepEqual(steps[0].toolCalls[0].input, { city: "Москва" });
          assert.equal(text, "Результат: Москва: +7 и снег");
        }
      });
    }

    test("a generated object follows its schema", async () => {
      const { request } = await asker();
      const said = { name: "Тверь", people: 416_000 };
      const { output } = await generateText({
        ...request,
        prompt: `say-json ${JSON.stringify(said)}`,
        output: Output.object({ schema: z.object({ name: z.string(), people: z.number() }) }),
      });
      assert.deepEqual(output, said);
    });

    test("a refusal is an error of the SDK, with the gateway's text", async () => {
      const { key, wire, request } = await asker();
      for (const [prompt, status] of [["vendor-400", 400], ["vendor-429", 429]]) {
        await assert.rejects(generateText({ ...request, prompt }), (error) => {
          assert.ok(APICallError.isInstance(error), error);
          assert.equal(error.statusCode, status);
          assert.ok(error.message.endsWith(`(${wire.number})`), error.message);
          return true;
        });
      }
      await key.assertSpent();
    });

    test("a reference to an answer that is not stored is refused by name", async () => {
      const { request } = await asker();
      const call = generateText({
        ...request,
        prompt: "Привет",
        providerOptions: { openai: { store: false, previousResponseId: "resp_1" } },
      });
      await assert.rejects(call, (error) => {
        assert.equal(error.statusCode, 400);
        assert.match(error.message, /«previous_response_id»/);
        return true;
      });
    });

    // Without `store: false` the SDK refers to an earlier answer only by its id.
    test("a conversation continues if its items are sent, and is refused if only their ids are", async () => {
      const { request } = await asker();
      for (const providerOptions of [OPTIONS, {}]) {
        const turn = { role: "user", content: "Привет" };
        const { response } = await generateText({ ...request, providerOptions, messages: [turn] });
        const messages = [turn, ...response.messages, { role: "user", content: "И ещё раз" }];
        const next = generateText({ ...request, providerOptions, messages });
        if (providerOptions === OPTIONS) {
          assert.equal((await next).text, "Вы написали: И ещё раз");
          continue;
        }
        await assert.rejects(next, (error) => {
          assert.equal(error.statusCode, 400);
          assert.match(error.message, /store: false/);
          return true;
        });
      }
    });

    test("a cut stream fails with its request number", async () => {
      const { request } = await asker();
      const stream = streamText({ ...request, prompt: "vendor-cut: " + "обрыв на полуслове ".repeat(8), onError() {} });
      const parts = await collect(stream.fullStream);
      const failed = parts.find(({ type }) => type === "error");
      assert.match(String(failed?.error?.message ?? JSON.stringify(failed)), NUMBER);
      assert.notEqual(await stream.finishReason.catch(() => "none"), "stop");
    });
  });
}
