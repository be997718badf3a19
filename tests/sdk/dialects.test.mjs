// The official SDKs, Claude Code and Codex call a tool of a vendor of each dialect, in a stream, and return its result.
//
// The fakes have the shapes of the vendors' documentation (docs/vendors), and refuse all others: GigaChat has functions, of
// which each call carries a state; DeepSeek requires its reasoning back; Azure has the deployment in the path and the
// version in the query; Vertex AI has the model in the path. It is assumed that Vertex AI answers a plain call at
// streamRawPredict, and that YandexGPT accepts no max_completion_tokens.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { join } from "node:path";
import { after, describe, test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { ask, Front } from "./claude.mjs";
import { run, served } from "./codex.mjs";
import { startGateway } from "./replay.mjs";

const KEY = "key-of-the-vendor";
const FILE = "шаги.txt";
const CITY = { city: "Москва" };
const STATE = "77d3fb14-457a-46ba-937e-8d856156d003";

/** Path, the header of the key and its value, the vendor's name of the model, and the settings of vendor and model. */
const DIALECTS = {
  gigachat: {
    path: "/gigachat/chat/completions",
    header: ["authorization", `Bearer ${KEY}`],
    vendor: `url = "URL/gigachat"`,
    model: "GigaChat-2-Max",
    fields: `functions = true\noutput_field = "max_tokens"\njson_schema = false\nreasoning_effort = false\nprompt_cache_key = false`,
  },
  yandexgpt: {
    path: "/yandex/v1/chat/completions",
    header: ["authorization", `Api-Key ${KEY}`],
    vendor: `url = "URL/yandex/v1"\nlogin = { prefix = "Api-Key " }`,
    model: "gpt://folder/yandexgpt-5.1/latest",
    fields: `output_field = "max_tokens"`,
  },
  deepseek: {
    path: "/deepseek/chat/completions",
    header: ["authorization", `Bearer ${KEY}`],
    vendor: `url = "URL/deepseek"`,
    model: "deepseek-flash",
    fields: `output_field = "max_tokens"`,
  },
  azure: {
    path: "/azure/openai/deployments/our-deployment/chat/completions?api-version=2024-10-21",
    header: ["api-key", KEY],
    vendor: `url = "URL/azure/openai"\npath = "/deployments/{model}/chat/completions"\nquery = { api-version = "2024-10-21" }\nlogin = { header = "api-key" }`,
    model: "our-deployment",
  },
  vertex: {
    path: "/vertex/publishers/anthropic/models/claude-opus-5-5:streamRawPredict",
    header: ["authorization", `Bearer ${KEY}`],
    vendor: `url = "URL/vertex/publishers/anthropic/models"\npath = "/{model}:streamRawPredict"\nanthropic_version = "vertex-2023-10-16"\nlogin = { prefix = "Bearer " }`,
    model: "claude-opus-5-5",
    messages: true,
  },
  bedrock: {
    path: "/bedrock/anthropic/v1/messages",
    header: ["authorization", `Bearer ${KEY}`],
    vendor: `url = "URL/bedrock/anthropic"\nlogin = { prefix = "Bearer " }`,
    model: "global.anthropic.claude-opus-5-5",
    messages: true,
  },
};

/** Why the vendor refuses a request; undefined if it does not. */
function refusal(name, body, headers) {
  const { header, model } = DIALECTS[name];
  if (headers[header[0]] !== header[1]) return `${header[0]}: ${headers[header[0]]}`;
  if (name === "vertex") {
    if ("model" in body || body.anthropic_version !== "vertex-2023-10-16") return "model: Extra inputs are not permitted";
  } else if (body.model !== model) return `no model ${body.model}`;
  if (["yandexgpt", "gigachat"].includes(name) && body.max_completion_tokens) return "max_completion_tokens is unknown";
  if (name === "gigachat") {
    if (body.tools || body.messages.some(({ role, tool_calls }) => role === "tool" || tool_calls)) return "tools are unknown";
    const lost = body.messages.find((it) => it.function_call && it.functions_state_id !== STATE);
    if (lost) return `the call lacks its state: ${JSON.stringify(lost)}`;
    for (const { content } of body.messages.filter(({ role }) => role === "function")) JSON.parse(content);
  }
  if (name === "deepseek") {
    const lost = body.messages.find((it) => it.tool_calls && it.reasoning_content !== "мысль");
    if (lost) return `the reasoning_content in the thinking mode must be passed back: ${JSON.stringify(lost)}`;
  }
}

/** The tool that the answer calls, with its input; undefined if the request has a result already, or no such tool. */
function call({ messages, tools, functions }) {
  const isResult = ({ role, content }) =>
    ["tool", "function"].includes(role) || (Array.isArray(content) && content.some(({ type }) => type === "tool_result"));
  if (messages.some(isResult)) return undefined;
  const names = (functions ?? tools ?? []).map((tool) => tool.function?.name ?? tool.name);
  const step = `echo шаг >> ${FILE}`;
  const known = { Bash: { command: step, description: "шаг" }, exec_command: { cmd: step }, get_weather: CITY };
  return Object.entries(known).find(([name]) => names.includes(name));
}

/** The events of a chat answer. */
function chatEvents(name, made) {
  const chunk = (delta, finish_reason = null) => ({ choices: [{ index: 0, delta, finish_reason }] });
  const usage = { choices: [], usage: { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 } };
  if (!made) return [chunk({ role: "assistant", content: "Готово" }), chunk({}, "stop"), usage];
  const [tool, input] = made;
  if (name === "gigachat") {
    const function_call = { name: tool, arguments: input };
    const delta = { role: "assistant", content: "", function_call, functions_state_id: STATE };
    return [chunk(delta, "function_call"), usage];
  }
  const begin = { index: 0, id: "call_1", type: "function", function: { name: tool, arguments: "" } };
  const rest = { index: 0, function: { arguments: JSON.stringify(input) } };
  const thought = name === "deepseek" ? [chunk({ reasoning_content: "мысль" })] : [];
  const calls = [chunk({ tool_calls: [begin] }), chunk({ tool_calls: [rest] }), chunk({}, "tool_calls")];
  return [chunk({ role: "assistant", content: "" }), ...thought, ...calls, usage];
}

/** The events of an answer in the messages format. */
function messagesEvents(made) {
  const usage = { input_tokens: 10, output_tokens: 5 };
  const message = { id: "msg_1", type: "message", role: "assistant", model: "claude", content: [], stop_reason: null, usage };
  const [block, delta] = made
    ? [{ type: "tool_use", id: "toolu_1", name: made[0], input: {} }, { type: "input_json_delta", partial_json: JSON.stringify(made[1]) }]
    : [{ type: "text", text: "" }, { type: "text_delta", text: "Готово" }];
  return [
    { type: "message_start", message },
    { type: "content_block_start", index: 0, content_block: block },
    { type: "content_block_delta", index: 0, delta },
    { type: "content_block_stop", index: 0 },
    { type: "message_delta", delta: { stop_reason: made ? "tool_use" : "end_turn" }, usage },
    { type: "message_stop" },
  ];
}

let refused = [];
let streams = 0;
const server = createServer(async (req, res) => {
  const parts = [];
  for await (const part of req) parts.push(part);
  const body = JSON.parse(Buffer.concat(parts));
  const found = Object.entries(DIALECTS).find(([, { path }]) => path === req.url);
  if (!found) {
    res.writeHead(404, { "content-type": "application/json" }).end("{}");
    return;
  }
  const [name, { messages }] = found;
  const why = refusal(name, body, req.headers) ?? (body.stream ? undefined : "this suite streams");
  if (why) {
    refused.push(`${name}: ${why}`);
    res.writeHead(400, { "content-type": "application/json" }).end(JSON.stringify({ error: { message: why } }));
    return;
  }
  streams += 1;
  const made = call(body);
  res.writeHead(200, { "content-type": "text/event-stream" });
  if (messages) {
    for (const event of messagesEvents(made)) res.write(`event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`);
    res.end();
    return;
  }
  // Claude Code treats messages with the same id as one message.
  const head = { id: `chatcmpl-${streams}`, object: "chat.completion.chunk", created: 1, model: "m" };
  for (const event of chatEvents(name, made)) res.write(`data: ${JSON.stringify({ ...head, ...event })}\n\n`);
  res.end("data: [DONE]\n\n");
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const url = `http://127.0.0.1:${server.address().port}`;
const vendors = Object.entries(DIALECTS).map(
  ([name, { vendor, messages }]) =>
    `[[vendor]]\nname = "${name}"\nformat = "${messages ? "messages" : "chat"}"\nkey = "\${VENDOR_KEY}"\n${vendor.replace("URL", url)}\n`,
);
const models = Object.entries(DIALECTS).map(([name, { model, fields }]) => ({
  name,
  fields,
  route: `{ vendor = "${name}", model = "${model}" }`,
}));
const gateway = await startGateway({ url }, models, vendors.join(""));
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
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const user = { role: "user", content: "Какая погода?" };

for (const name of Object.keys(DIALECTS)) {
  describe(`${name}:`, () => {
    test("the openai SDK calls a tool in a stream", async () => {
      refused = [];
      const client = new OpenAI({ baseURL: `${gateway.url}/v1`, apiKey: secret, maxRetries: 0 });
      const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
      const read = async (messages) => {
        const message = { role: "assistant", content: "", tool_calls: [] };
        for await (const { choices } of await client.chat.completions.create({ model: name, messages, tools, stream: true })) {
          const { delta } = choices[0] ?? { delta: {} };
          message.content += delta.content ?? "";
          if (delta.reasoning_content) message.reasoning_content = delta.reasoning_content;
          for (const { index, id, type, function: fn } of delta.tool_calls ?? []) {
            message.tool_calls[index] ??= { id, type, function: { name: fn.name, arguments: "" } };
            message.tool_calls[index].function.arguments += fn.arguments ?? "";
          }
        }
        return message;
      };
      const called = await read([user]);
      assert.deepEqual(refused, []);
      assert.equal(called.tool_calls.length, 1);
      const [{ id, function: fn }] = called.tool_calls;
      assert.deepEqual([fn.name, JSON.parse(fn.arguments)], ["get_weather", CITY]);
      const done = await read([user, called, { role: "tool", tool_call_id: id, content: "+7 и снег" }]);
      assert.deepEqual([refused, done.content], [[], "Готово"]);
    });

    test("the anthropic SDK calls a tool in a stream", async () => {
      refused = [];
      const client = new Anthropic({ baseURL: gateway.url, apiKey: secret, maxRetries: 0 });
      const tools = [{ name: "get_weather", input_schema: parameters }];
      const read = (messages) => client.messages.stream({ model: name, max_tokens: 100, messages, tools }).finalMessage();
      const called = await read([user]);
      assert.deepEqual(refused, []);
      assert.equal(called.stop_reason, "tool_use");
      const { id, name: tool, input } = called.content.find(({ type }) => type === "tool_use");
      assert.deepEqual([tool, input], ["get_weather", CITY]);
      const result = { type: "tool_result", tool_use_id: id, content: "+7 и снег" };
      const done = await read([user, { role: "assistant", content: called.content }, { role: "user", content: [result] }]);
      assert.deepEqual([refused, done.content.at(-1).text], [[], "Готово"]);
    });

    test("Claude Code runs a command", async () => {
      refused = [];
      let made;
      const report = await ask({
        url: front.url,
        model: name,
        text: "Сделай шаг",
        env: { ANTHROPIC_AUTH_TOKEN: secret },
        options: ["--allowedTools", "Bash"],
        after: async (home) => (made = await readFile(join(home, FILE), "utf8").catch(() => null)),
      });
      assert.deepEqual([refused, report.is_error, report.result, made], [[], false, "Готово", "шаг\n"], JSON.stringify(report));
    });

    test("Codex runs a command", async () => {
      refused = [];
      const config = await served(gateway.url, front);
      const { code, printed, made } = await run({ secret, model: name, task: "Сделай шаг", config, files: [FILE] });
      assert.deepEqual([refused, code, made], [[], 0, ["шаг\n"]], printed);
      assert.match(printed, /Готово/);
    });
  });
}
