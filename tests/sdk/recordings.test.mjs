// Recorded answers of vendors, read by the SDK of the other format: equal to what the SDK of their own format reads,
// however the bytes are cut on their way.

import assert from "node:assert/strict";
import { fileURLToPath } from "node:url";
import { after, describe, test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { Vendor, recordings, startGateway } from "./replay.mjs";

const FOLDER = fileURLToPath(new globalThis.URL("../gateway/fixtures", import.meta.url));
const SEEDS = [1, 2, 3, 5, 8];
/** Long enough that no count of a recording is above what the input may come to. */
const TEXT = "слово ".repeat(5000);
const ASKED = { max_tokens: 4096, messages: [{ role: "user", content: TEXT }] };

const recorded = await recordings(FOLDER);
const broken = brokenStreams();
const vendor = await Vendor.start([...recorded, ...broken]);
const gateway = await startGateway(vendor, [...recorded, ...broken]);
after(async () => {
  await gateway.stop();
  vendor.stop();
});
Object.assign(process.env, {
  TOLLGATE_URL: gateway.url,
  TOLLGATE_ADMIN_URL: gateway.admin,
  TOLLGATE_ADMIN_KEY: gateway.adminKey,
});
const { Key, NUMBER, Wire } = await import("./gateway.mjs");
const key = await Key.create();

// Readers: an answer as `{ text, thinking, calls, stop, usage }`, in the words of the format that it was read in. One
// that the vendor broke off is `{ text, thinking, failed }`.

const READERS = {
  chat: {
    /** What the SDK gathers; its helper's view of a stream, with the reasoning that the helper leaves alone. */
    async read({ name, stream }) {
      const wire = new Wire();
      const client = chatClient(wire);
      if (!stream) {
        const answer = await client.chat.completions.create({ model: name, ...ASKED });
        return chatAnswer(answer, wire, answer.choices[0].message.reasoning_content);
      }
      const helper = client.chat.completions.stream({ model: name, ...ASKED, stream_options: { include_usage: true } });
      let reasoning = "";
      helper.on("chunk", ({ choices }) => (reasoning += choices[0]?.delta.reasoning_content ?? ""));
      return chatAnswer(await helper.finalChatCompletion(), wire, reasoning);
    },
    /** The same of a vendor's own stream, whose peculiarities the helper does not always take. */
    async readOwn(recording) {
      return recording.stream ? chatChunks(recording.name) : READERS.chat.read(recording);
    },
  },
  messages: {
    async read({ name, stream }, params = { thinking: { type: "enabled", budget_tokens: 1024 } }) {
      const wire = new Wire();
      const client = messagesClient(wire);
      const request = { model: name, ...ASKED, ...params };
      if (!stream) return messagesAnswer(await client.messages.create(request), wire);
      const seen = { text: "", thinking: "" };
      const helper = client.messages.stream(request);
      for (const kind of Object.keys(seen)) helper.on(kind, (piece) => (seen[kind] += piece));
      return helper.finalMessage().then((answer) => messagesAnswer(answer, wire), failed(seen, wire));
    },
    readOwn: (recording) => READERS.messages.read(recording),
  },
};

const chatClient = (wire) =>
  new OpenAI({ apiKey: key.secret, baseURL: `${gateway.url}/v1`, fetch: wire.fetch, maxRetries: 0, timeout: 20_000 });
const messagesClient = (wire) =>
  new Anthropic({ apiKey: key.secret, baseURL: gateway.url, fetch: wire.fetch, maxRetries: 0, timeout: 20_000 });

function chatAnswer(answer, wire, reasoning) {
  const [{ message, finish_reason }] = answer.choices;
  return {
    number: wire.number,
    text: message.content ?? "",
    thinking: reasoning ?? "",
    calls: (message.tool_calls ?? []).map(chatCall),
    stop: finish_reason,
    usage: chatUsage(answer.usage),
  };
}

/** A vendor's chat stream gathered by hand: text, reasoning by any of its names, tool calls by index. */
async function chatChunks(name) {
  const wire = new Wire();
  const params = { model: name, ...ASKED, stream: true, stream_options: { include_usage: true } };
  const seen = { text: "", thinking: "" };
  let [calls, stop, last] = [[], null, null];
  try {
    for await (const { choices, usage } of await chatClient(wire).chat.completions.create(params)) {
      last = usage ?? last;
      for (const { delta, finish_reason } of choices) {
        stop = finish_reason || stop;
        seen.text += delta.content ?? "";
        const details = delta.reasoning_details?.map(({ text }) => text ?? "").join("");
        seen.thinking += delta.reasoning_content ?? delta.reasoning ?? details ?? "";
        for (const { index, id, function: fn } of delta.tool_calls ?? []) {
          calls[index] ??= { id, function: { name: fn.name, arguments: "" } };
          calls[index].function.arguments += fn.arguments ?? "";
        }
      }
    }
  } catch (error) {
    return failed(seen, wire)(error);
  }
  return { ...seen, number: wire.number, calls: calls.map(chatCall), stop, usage: chatUsage(last) };
}

/** What was seen of a stream that the vendor broke off, once its error has come. */
function failed(seen, wire) {
  return (error) => {
    assert.ok(error instanceof OpenAI.APIError || error instanceof Anthropic.APIError, error.stack);
    return { ...seen, number: wire.number, failed: true };
  };
}

function chatCall({ id, function: { name, arguments: text } }) {
  return { id, name, input: JSON.parse(text || "{}") };
}

function chatUsage({ prompt_tokens, completion_tokens, total_tokens, ...details }) {
  const cached_input = details.prompt_tokens_details?.cached_tokens ?? 0;
  const cache_write = details.prompt_tokens_details?.cache_write_tokens ?? 0;
  const thinking = details.completion_tokens_details?.reasoning_tokens ?? 0;
  // One vendor counts reasoning beside the completion; only the total tells.
  const beside = thinking > 0 && total_tokens === prompt_tokens + completion_tokens + thinking;
  const output = completion_tokens + (beside ? thinking : 0);
  return { input: prompt_tokens - cached_input - cache_write, cached_input, cache_write, output, thinking };
}

function messagesAnswer({ content, stop_reason, stop_sequence, usage }, wire) {
  const joined = (kind, field) => content.filter(({ type }) => type === kind).map((block) => block[field]).join("");
  const calls = content.filter(({ type }) => type === "tool_use");
  return {
    number: wire.number,
    text: joined("text", "text"),
    thinking: joined("thinking", "thinking"),
    calls: calls.map(({ id, name, input }) => ({ id, name, input })),
    stop: stop_reason,
    stop_sequence,
    usage: {
      input: usage.input_tokens,
      cached_input: usage.cache_read_input_tokens ?? 0,
      cache_write: usage.cache_creation_input_tokens ?? 0,
      output: usage.output_tokens,
      thinking: usage.output_tokens_details?.thinking_tokens ?? 0,
    },
  };
}

// What an answer has to be in the other format. Text, tool calls and usage are the same: the readers already leave out
// the blocks of a vendor's own tools, and count by class.

const STOPS = {
  chat: {
    end_turn: "stop",
    stop_sequence: "stop",
    pause_turn: "stop",
    max_tokens: "length",
    model_context_window_exceeded: "length",
    tool_use: "tool_calls",
    refusal: "content_filter",
  },
  messages: {
    stop: "end_turn",
    length: "max_tokens",
    tool_calls: "tool_use",
    function_call: "tool_use",
    content_filter: "refusal",
  },
};

function translation({ number, stop, stop_sequence, ...same }, format) {
  if (same.failed) return same;
  if (format === "chat") return { ...same, stop: STOPS.chat[stop] };
  // Some vendors end on `stop` where a tool was called, or give no reason at all.
  const called = same.calls.length > 0 && (!stop || stop === "stop");
  return { ...same, stop: called ? "tool_use" : STOPS.messages[stop || "stop"], stop_sequence: null };
}

const other = (format) => (format === "chat" ? "messages" : "chat");

describe("recordings of both formats are there, streamed, plain and errors", () => {
  for (const format of ["chat", "messages"]) {
    test(format, () => {
      const of = recorded.filter((recording) => recording.format === format);
      for (const kind of [(r) => r.stream, (r) => !r.stream && r.status === 200, (r) => r.status !== 200]) {
        assert.ok(of.some(kind), `${FOLDER}: ${of.map(({ name }) => name)}`);
      }
    });
  }
});

for (const recording of recorded.filter(({ status }) => status === 200)) {
  const { name, format } = recording;
  const caller = other(format);

  test(`${name} is the same for ${caller} callers`, async () => {
    const own = await READERS[format].readOwn(recording);
    const expected = translation(own, caller);
    for (const seed of [null, ...SEEDS]) {
      vendor.seed = seed;
      const { number, ...read } = await READERS[caller].read(recording);
      assert.deepEqual(read, expected, `cut by seed ${seed}`);
      await sameCharge(number, own);
    }
    vendor.seed = null;
  });
}

/** Call `number` was charged as the same answer in its own format, and as the SDK shows it. */
async function sameCharge(number, own) {
  const [receipt, ownReceipt] = await Promise.all([key.receipt(number), key.receipt(own.number)]);
  for (const field of ["usage", "charged_rub", "end", "estimated"]) assert.deepEqual(receipt[field], ownReceipt[field], field);
  if (own.failed) return;
  const { thinking, ...classes } = own.usage;
  assert.deepEqual([receipt.usage, receipt.end, receipt.estimated], [classes, "finished", false]);
}

for (const recording of recorded.filter(({ format, status }) => format === "chat" && status === 200)) {
  test(`${recording.name} shows no thinking to a caller who did not ask for it`, async () => {
    const expected = translation(await READERS.chat.readOwn(recording), "messages");
    const { number, ...read } = await READERS.messages.read(recording, {});
    assert.deepEqual(read, { ...expected, thinking: "" });
  });
}

for (const recording of recorded.filter(({ status }) => status !== 200)) {
  test(`${recording.name} is an error of ours for both callers`, async () => {
    // A vendor that does not know its model is the operator's trouble, not the caller's.
    const status = { 400: 400, 404: 503 }[recording.status];
    for (const client of [chatClient, messagesClient]) {
      const wire = new Wire();
      const sdk = client === chatClient ? OpenAI : Anthropic;
      const asked = { model: recording.name, ...ASKED };
      const call = client === chatClient ? client(wire).chat.completions.create(asked) : client(wire).messages.create(asked);
      const error = await call.then(() => assert.fail("an answer"), (error) => error);
      assert.ok(error instanceof (status === 400 ? sdk.BadRequestError : sdk.InternalServerError), String(error));
      assert.equal(error.status, status);
      const { message, type } = error.error.error ?? error.error;
      assert.equal(type, status === 400 ? "invalid_request_error" : "api_error");
      assert.match(wire.number, NUMBER);
      assert.ok(message.endsWith(`(${wire.number})`), message);
      const told = JSON.parse(recording.bytes).error.message;
      // What a caller can mend is told in the vendor's words; how the vendor calls its models is not.
      assert.equal(message.includes(told), status === 400, message);
    }
  });
}

// Streams that break

/** Beginnings of streams, of both formats, and how they break. */
function brokenStreams() {
  const data = (value) => `data: ${JSON.stringify(value)}\n\n`;
  const named = (value) => `event: ${value.type}\n${data(value)}`;
  const delta = (delta, finish_reason = null) => ({ choices: [{ index: 0, delta, finish_reason }] });
  const chunk = (rest) => data({ id: "c", object: "chat.completion.chunk", created: 1, model: "m", ...rest });
  const usage = { input_tokens: 5, output_tokens: 1 };
  const message = { id: "m", type: "message", role: "assistant", model: "m", content: [], stop_reason: null, usage };
  const begun = {
    chat: chunk(delta({ role: "assistant", content: "" })) + chunk(delta({ content: "Нача" })),
    messages:
      named({ type: "message_start", message }) +
      named({ type: "content_block_start", index: 0, content_block: { type: "text", text: "" } }) +
      named({ type: "content_block_delta", index: 0, delta: { type: "text_delta", text: "Нача" } }),
  };
  const error = {
    chat: data({ error: { message: "overloaded", type: "server_error", code: 502 } }),
    messages: named({ type: "error", error: { type: "overloaded_error", message: "overloaded" } }),
  };
  const base = { stream: true, status: 200 };
  return ["chat", "messages"].flatMap((format) => [
    { ...base, format, name: `${format}-error-inside`, bytes: Buffer.from(begun[format] + error[format]) },
    { ...base, format, name: `${format}-error-first`, bytes: Buffer.from(error[format]), first: true },
    { ...base, format, name: `${format}-ends-early`, bytes: Buffer.from(begun[format]) },
    { ...base, format, name: `${format}-cut`, bytes: Buffer.from(begun[format]), cut: true },
  ]);
}

for (const { name, first } of broken) {
  test(`${name}: a stream that breaks raises in both SDKs`, async () => {
    for (const sdk of [OpenAI, Anthropic]) {
      const wire = new Wire();
      const asked = { model: name, ...ASKED, stream: true };
      const seen = [];
      const read = async () => {
        const stream = await (sdk === OpenAI
          ? chatClient(wire).chat.completions.create(asked)
          : messagesClient(wire).messages.create(asked));
        for await (const event of stream) seen.push(event);
      };
      const error = await read().then(() => assert.fail(`looks whole: ${JSON.stringify(seen)}`), (error) => error);
      // Node's own fetch ends a broken body with `TypeError: terminated`.
      assert.ok(error instanceof sdk.APIError || error.message === "terminated", `${sdk.name}: ${error.stack}`);
      const text = seen.map((event) => event.choices?.[0].delta.content ?? event.delta?.text ?? "").join("");
      assert.equal(text, first ? "" : "Нача");
      // Before the first byte there is still a status to say it with.
      if (first) assert.ok([502, 503].includes(error.status), `${sdk.name}: ${error.status} ${error.message}`);
      assert.ok(!seen.some((event) => event.choices?.[0].finish_reason || event.type === "message_stop"));
    }
  });
}

test("vendors get no field of the other format", async () => {
  for (const body of vendor.received) {
    const chat = body.model.startsWith("chat-");
    const strange = chat ? ["system", "thinking", "stop_sequences", "anthropic_version"] : ["stop", "stream_options"];
    assert.deepEqual(strange.filter((name) => name in body), [], body.model);
  }
});
