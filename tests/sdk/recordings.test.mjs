// Recorded answers of vendors, translated and then read by the SDKs of the other formats. The result must equal what
// the SDK of the recording's own format reads, however the bytes are cut on their way.

import assert from "node:assert/strict";
import { fileURLToPath } from "node:url";
import { after, test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { Vendor, recordings, startGateway } from "./replay.mjs";

const FOLDER = fileURLToPath(new globalThis.URL("../gateway/fixtures", import.meta.url));
const SEEDS = [1, 2, 3, 5, 8];
/** A text so large that no recorded count exceeds what the request allows. */
const TEXT = "слово ".repeat(8000);
const ASKED = { max_tokens: 4096, messages: [{ role: "user", content: TEXT }] };

const recorded = await recordings(FOLDER);
const made = madeStreams();
const broken = brokenStreams();
const vendor = await Vendor.start([...recorded, ...made, ...broken]);
const gateway = await startGateway(vendor, [...recorded, ...made, ...broken]);
after(async () => {
  await gateway.stop();
  vendor.stop();
});
Object.assign(process.env, {
  TOLLGATE_URL: gateway.url,
  TOLLGATE_ADMIN_URL: gateway.admin,
  TOLLGATE_ADMIN_KEY: gateway.adminKey,
});
const { Key, NUMBER, Wire, micro } = await import("./gateway.mjs");
const key = await Key.create();

// Readers: they return an answer as `{ text, thinking, calls, stop, usage }`, with the values of the format in which it
// was read. An answer that the vendor broke off is `{ text, thinking, failed }`. An answer in several items of the
// responses format is `{ texts, thoughts, … }`.

const READERS = {
  chat: {
    /**
     * Reads with the SDK. For streams it uses the SDK's helper, and collects the reasoning, which the helper ignores.
     */
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
    /** Reads the vendor's own answer. Its streams have peculiarities that the helper does not always accept. */
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
  responses: {
    /** Reads with the SDK. */
    async read({ name, stream }) {
      const wire = new Wire();
      const client = chatClient(wire);
      const request = { model: name, ...ASKED_RESPONSES };
      if (!stream) return joined(responsesAnswer(await client.responses.create(request), wire));
      const seen = { text: "", thinking: "" };
      const helper = client.responses.stream(request);
      helper.on("response.output_text.delta", ({ delta }) => (seen.text += delta));
      for (const kind of ["text", "summary_text"]) {
        helper.on(`response.reasoning_${kind}.delta`, ({ delta }) => (seen.thinking += delta));
      }
      return helper.finalResponse().then((answer) => joined(responsesAnswer(answer, wire)), failed(seen, wire));
    },
    /**
     * Reads the vendor's own answer, with its items as they are at their end. If a recording was cut between the deltas
     * of an item and its end, the deltas count.
     */
    async readOwn({ name, stream }) {
      const wire = new Wire();
      const client = chatClient(wire);
      const request = { model: name, ...ASKED_RESPONSES };
      if (!stream) return responsesAnswer(await client.responses.create(request), wire);
      const [output, deltas] = [[], []];
      let last = null;
      try {
        for await (const event of await client.responses.create({ ...request, stream: true })) {
          const { type, output_index: index } = event;
          if (type === "response.output_text.delta") deltas[index] = (deltas[index] ?? "") + event.delta;
          if (type === "response.output_item.done") output[index] = event.item;
          if (["response.completed", "response.incomplete"].includes(event.type)) last = event.response;
        }
      } catch (error) {
        return failed({ text: "", thinking: "" }, wire)(error);
      }
      deltas.forEach((text, index) => (output[index].content = [{ type: "output_text", text }]));
      return responsesAnswer({ ...last, output: output.filter(Boolean) }, wire);
    },
  },
};

const ASKED_RESPONSES = { input: TEXT, max_output_tokens: 4096, reasoning: { summary: "auto" } };

const chatClient = (wire) =>
  new OpenAI({ apiKey: key.secret, baseURL: `${gateway.url}/v1`, fetch: wire.fetch, maxRetries: 0, timeout: 20_000 });
const messagesClient = (wire) =>
  new Anthropic({ apiKey: key.secret, baseURL: gateway.url, fetch: wire.fetch, maxRetries: 0, timeout: 20_000 });

/** A call in each format, and the SDK that makes it. */
const CALLERS = {
  chat: { sdk: OpenAI, ask: (wire, rest) => chatClient(wire).chat.completions.create({ ...ASKED, ...rest }) },
  messages: { sdk: Anthropic, ask: (wire, rest) => messagesClient(wire).messages.create({ ...ASKED, ...rest }) },
  responses: { sdk: OpenAI, ask: (wire, rest) => chatClient(wire).responses.create({ ...ASKED_RESPONSES, ...rest }) },
};

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

/**
 * Collects a vendor's chat stream without the helper: text, reasoning under any of its field names, tool calls by
 * index.
 */
async function chatChunks(name) {
  const wire = new Wire();
  const params = { model: name, ...ASKED, stream: true, stream_options: { include_usage: true } };
  const seen = { text: "", thinking: "" };
  let [calls, refusal, stop, last] = [[], "", null, null];
  try {
    for await (const { choices, usage } of await chatClient(wire).chat.completions.create(params)) {
      last = usage ?? last;
      for (const { delta, finish_reason } of choices) {
        stop = finish_reason || stop;
        seen.text += delta.content ?? "";
        refusal += delta.refusal ?? "";
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
  return { ...seen, number: wire.number, refusal, calls: calls.map(chatCall), stop, usage: chatUsage(last) };
}

/** The part of a stream that was read before the error with which the vendor broke it off. */
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
  // One vendor counts reasoning in addition to the completion, which shows only in the total.
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

function responsesAnswer({ output, status, incomplete_details, usage }, wire) {
  const of = (type) => output.filter((item) => item.type === type);
  const parts = (list, type) => (list ?? []).filter((part) => part.type === type).map(({ text }) => text);
  const refusal = of("message").flatMap(({ content }) => content.map((part) => part.refusal ?? "")).join("");
  return {
    number: wire.number,
    texts: of("message").map(({ content }) => parts(content, "output_text").join("")),
    // The text of the reasoning, or otherwise its summary.
    thoughts: of("reasoning").map(({ content, summary }) => {
      const text = parts(content, "reasoning_text");
      return text.length > 0 ? text : parts(summary, "summary_text");
    }),
    refusal,
    calls: of("function_call").map(({ call_id, name, arguments: text }) => ({ id: call_id, name, input: JSON.parse(text || "{}") })),
    stop: incomplete_details?.reason ?? status,
    usage: {
      input: usage.input_tokens - (usage.input_tokens_details?.cached_tokens ?? 0) - written(usage),
      cached_input: usage.input_tokens_details?.cached_tokens ?? 0,
      cache_write: written(usage),
      output: usage.output_tokens,
      thinking: usage.output_tokens_details?.reasoning_tokens ?? 0,
    },
  };
}

const written = ({ input_tokens_details }) => input_tokens_details?.cache_write_tokens ?? 0;

/** In a translated answer, the text is in one piece, and so is the thinking. */
function joined({ texts, thoughts, ...same }) {
  return { ...same, text: texts.join(""), thinking: thoughts.flat().join("") };
}

// The expected answer in another format. Text, tool calls and usage are the same: the readers already leave out the
// blocks of tools that the vendor ran, and count by class.

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
    completed: "end_turn",
    max_output_tokens: "max_tokens",
  },
  responses: {
    length: "max_output_tokens",
    max_tokens: "max_output_tokens",
    model_context_window_exceeded: "max_output_tokens",
    content_filter: "content_filter",
    refusal: "content_filter",
  },
};
Object.assign(STOPS.chat, { completed: "stop", max_output_tokens: "length", content_filter: "content_filter" });

function translation({ number, stop, stop_sequence, refusal, texts, thoughts, ...same }, format) {
  if (same.failed) return same;
  if (format === "responses") return { ...same, refusal: refusal ?? "", stop: STOPS.responses[stop] ?? "completed" };
  if (texts) {
    const [between, parts] = format === "chat" ? ["\n\n", "\n\n"] : ["", "\n\n"];
    same.text = texts.join(between);
    same.thinking = thoughts.map((thought) => thought.join(parts)).join(between);
    if (stop === "completed" && same.calls.length > 0) stop = format === "chat" ? "tool_use" : "tool_calls";
  }
  if (format === "chat") return { ...same, stop: STOPS.chat[stop] };
  if (refusal) return { ...same, text: same.text + refusal, stop: "refusal", stop_sequence: null };
  // Some vendors end with `stop` although a tool was called, or give no reason at all.
  const called = same.calls.length > 0 && (!stop || stop === "stop");
  return { ...same, stop: called ? "tool_use" : STOPS.messages[stop || "stop"], stop_sequence: null };
}

const FORMATS = Object.keys(READERS);
const others = (format) => FORMATS.filter((other) => other !== format);

test("there are recordings of every format: streamed, plain and errors", () => {
  const kinds = new Set(recorded.map(({ format, stream, status }) => `${format} ${stream ? "stream" : status}`));
  for (const kind of ["stream", "200", "400"]) {
    for (const format of FORMATS) assert.ok(kinds.has(`${format} ${kind}`), `${FOLDER}: ${[...kinds]}`);
  }
});

/** Whether the vendor fails at the start of a stream, although its status is 200. */
const isFailure = ({ name }) => name.includes("-failed-");

for (const recording of [...recorded.filter((it) => it.status === 200 && !isFailure(it)), ...made]) {
  const { name, format } = recording;

  for (const caller of others(format)) {
    test(`${name} is the same for ${caller} callers`, async () => {
      const own = await READERS[format].readOwn(recording);
      const expected = translation(own, caller);
      for (const seed of [null, ...SEEDS]) {
        vendor.seed = seed;
        const { number, ...read } = await READERS[caller].read(recording);
        // One vendor reported no counts, so each caller gets the estimate for its own request.
        if (uncounted(recording)) read.usage = expected.usage;
        assert.deepEqual(read, expected, `cut by seed ${seed}`);
        await sameCharge(number, own, recording);
      }
      vendor.seed = null;
    });
  }
}

/**
 * Checks that the call with this request number was charged like the same answer in its own format, and by the vendor's
 * counts.
 */
async function sameCharge(number, own, recording) {
  const [receipt, ownReceipt] = await Promise.all([key.receipt(number), key.receipt(own.number)]);
  if (uncounted(recording)) {
    for (const { estimated, end, charged_rub } of [receipt, ownReceipt]) {
      assert.deepEqual([estimated, end], [true, "finished"]);
      assert.ok(micro(charged_rub) > 0n);
    }
    return;
  }
  for (const field of ["usage", "charged_rub", "end", "estimated"]) {
    assert.deepEqual(receipt[field], ownReceipt[field], field);
  }
  const { thinking, ...classes } = own.usage ?? chatUsage(lastUsage(recording.bytes));
  assert.deepEqual([receipt.usage, receipt.estimated], [classes, false]);
  if (!own.failed) assert.equal(receipt.end, "finished");
}

const uncounted = ({ stream, bytes }) => !stream && JSON.parse(bytes).usage?.total_tokens === 0;

/**
 * The last usage of a chat stream, for streams that end with an error: the SDK does not return the usage of such
 * streams.
 */
function lastUsage(bytes) {
  const lines = bytes.toString().split("\n").filter((line) => line.startsWith("data: {"));
  return lines.map((line) => JSON.parse(line.slice(6)).usage).findLast(Boolean);
}

for (const recording of recorded.filter(({ format, status }) => format === "chat" && status === 200)) {
  test(`${recording.name} shows no thinking to a caller that did not request it`, async () => {
    const expected = translation(await READERS.chat.readOwn(recording), "messages");
    const { number, ...read } = await READERS.messages.read(recording, {});
    assert.deepEqual(read, { ...expected, thinking: "" });
  });
}

for (const recording of recorded.filter(({ status }) => status !== 200)) {
  test(`${recording.name} is an error of the gateway for all callers`, async () => {
    // If a vendor does not have the model, that is the operator's error and not the caller's.
    const status = { 400: 400, 404: 503 }[recording.status];
    for (const { sdk, ask } of Object.values(CALLERS)) {
      const wire = new Wire();
      const error = await ask(wire, { model: recording.name }).then(() => assert.fail("an answer"), (error) => error);
      assert.ok(error instanceof (status === 400 ? sdk.BadRequestError : sdk.InternalServerError), String(error));
      assert.equal(error.status, status);
      const { message, type } = error.error.error ?? error.error;
      assert.equal(type, status === 400 ? "invalid_request_error" : "api_error");
      assert.match(wire.number, NUMBER);
      assert.ok(message.endsWith(`(${wire.number})`), message);
      // The gateway leaves out ids of the vendor.
      const told = JSON.parse(recording.bytes).error.message.replace(/'rs_\w+'/, "'…'");
      // The caller gets the vendor's text if it can correct the error, but never the vendor's names of models.
      assert.equal(message.includes(told), status === 400, message);
    }
  });
}

// Streams that no recording has.

function data(value) {
  return `data: ${JSON.stringify(value)}\n\n`;
}

function event(value) {
  return `event: ${value.type}\n${data(value)}`;
}

function chunk(delta, finish_reason = null) {
  return chatData([{ index: 0, delta, finish_reason }]);
}

function chatData(choices, rest = {}) {
  return data({ id: "made-1", object: "chat.completion.chunk", created: 1, model: "made", choices, ...rest });
}

function messageStart() {
  const usage = { input_tokens: 5, output_tokens: 1 };
  const message = { id: "made-1", type: "message", role: "assistant", model: "made", content: [], stop_reason: null };
  return event({ type: "message_start", message: { ...message, usage } });
}

/** Complete streams. */
function madeStreams() {
  const counts = { prompt_tokens: 5, completion_tokens: 9, total_tokens: 14 };
  const usage = `${chatData([], { usage: counts })}data: [DONE]\n\n`;
  const call = (index, rest) => chunk({ tool_calls: [{ index, ...rest }] });
  const begin = (index, id, name) => call(index, { id, type: "function", function: { name, arguments: "" } });
  const more = (index, piece) => call(index, { function: { arguments: piece } });
  const streams = {
    // The messages format never interleaves tool calls.
    "chat-made-interleaved-tools": [
      chunk({ role: "assistant", content: "Смотрю." }),
      begin(0, "call_a", "first"),
      more(0, '{"city":'),
      begin(1, "call_b", "second"),
      more(1, '{"n":'),
      more(0, '"Москва"}'),
      more(1, "12}"),
      chunk({}, "stop"),
      usage,
    ],
    "chat-made-text-after-tool": [
      begin(0, "call_a", "first"),
      more(0, "{}"),
      chunk({ content: "Готово." }),
      chunk({}, "tool_calls"),
      usage,
    ],
    "chat-made-first-chunk-about-the-prompt": [
      data({ id: "", model: "", object: "", created: 0, choices: [], prompt_filter_results: [] }),
      chunk({ role: "assistant", content: "Да" }),
      chunk({}, "stop"),
      usage,
    ],
    "chat-made-refusal": [
      chunk({ role: "assistant", content: "", refusal: null }),
      chunk({ refusal: "Не " }),
      chunk({ refusal: "могу." }),
      chunk({}, "stop"),
      usage,
    ],
    "messages-made-refusal": [
      messageStart(),
      event({
        type: "message_delta",
        delta: { stop_reason: "refusal", stop_sequence: null, stop_details: { type: "refusal", category: "cyber" } },
        usage: { output_tokens: 3 },
      }),
      event({ type: "message_stop" }),
    ],
  };
  return Object.entries(streams).map(([name, parts]) => stream(name, parts.join("")));
}

/** Beginnings of streams, each with several ways to break off. */
function brokenStreams() {
  const of = { item_id: "msg_1", output_index: 0, content_index: 0 };
  const begunMessage = () => ({ id: "msg_1", type: "message", role: "assistant", status: "in_progress", content: [] });
  const begunResponse = () => ({ id: "resp_1", object: "response", status: "in_progress", model: "made", output: [] });
  const begun = {
    chat: chunk({ role: "assistant", content: "" }) + chunk({ content: "Нача" }),
    messages:
      messageStart() +
      event({ type: "content_block_start", index: 0, content_block: { type: "text", text: "" } }) +
      event({ type: "content_block_delta", index: 0, delta: { type: "text_delta", text: "Нача" } }),
    responses:
      event({ type: "response.created", response: begunResponse() }) +
      event({ type: "response.output_item.added", output_index: 0, item: begunMessage() }) +
      event({ type: "response.content_part.added", ...of, part: { type: "output_text", text: "", annotations: [] } }) +
      event({ type: "response.output_text.delta", ...of, delta: "Нача", logprobs: [] }),
  };
  const error = {
    chat: data({ error: { message: "overloaded", type: "server_error", code: 502 } }),
    messages: event({ type: "error", error: { type: "overloaded_error", message: "overloaded" } }),
    responses: event({ type: "error", code: "server_error", message: "overloaded", param: null }),
  };
  return Object.keys(begun).flatMap((format) => [
    stream(`${format}-broken-by-an-error`, begun[format] + error[format]),
    stream(`${format}-broken-from-the-start`, error[format], { first: true }),
    stream(`${format}-broken-off`, begun[format]),
    stream(`${format}-broken-by-a-cut`, begun[format], { cut: true }),
  ]);
}

function stream(name, text, rest = {}) {
  return { name, format: name.split("-")[0], stream: true, status: 200, bytes: Buffer.from(text), ...rest };
}

const ENDS = ["message_stop", "response.completed", "response.incomplete"];

/** The text that an event of any format adds. */
function textOf({ type, choices, delta }) {
  if (type === "response.output_text.delta") return delta;
  return choices?.[0].delta.content ?? delta?.text ?? "";
}

const failures = recorded.filter(isFailure).map(({ name }) => ({ name, first: true }));

for (const { name, first } of [...broken, ...failures]) {
  test(`${name} is an error for all callers`, async () => {
    for (const { sdk, ask } of Object.values(CALLERS)) {
      const wire = new Wire();
      const seen = [];
      const read = async () => {
        for await (const event of await ask(wire, { model: name, stream: true })) seen.push(event);
      };
      const error = await read().then(() => assert.fail(`looks whole: ${JSON.stringify(seen)}`), (error) => error);
      // Node's own `fetch` reports a body that breaks off as `TypeError: terminated`.
      assert.ok(error instanceof sdk.APIError || error.message === "terminated", `${sdk.name}: ${error.stack}`);
      const text = seen.map(textOf).join("");
      assert.equal(text, first ? "" : "Нача");
      // Before the first byte, the gateway can still answer with an error status.
      if (first) assert.ok([502, 503].includes(error.status), `${sdk.name}: ${error.status} ${error.message}`);
      assert.ok(!seen.some((event) => event.choices?.[0].finish_reason || ENDS.includes(event.type)));
    }
  });
}

test("vendors get requests in their own format, and usage is requested for streams", () => {
  const fields = {
    chat: ["model", "messages", "max_tokens", "max_completion_tokens", "reasoning_effort", "stream", "stream_options"],
    messages: ["model", "messages", "max_tokens", "thinking", "stream"],
    responses: ["model", "input", "max_output_tokens", "reasoning", "include", "store", "stream"],
  };
  for (const body of vendor.received) {
    const format = body.model.split("-")[0];
    assert.deepEqual(Object.keys(body).filter((name) => !fields[format].includes(name)), [], body.model);
    if (format === "chat" && body.stream) assert.equal(body.stream_options.include_usage, true, body.model);
  }
});
