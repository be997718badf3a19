// Claude Code and Codex work on a task whose context grows by some 20 KB each turn. Prints what each call held and cost.
// From the third call on, the hold counts the conversation so far as the vendor did. Holds that grow with the output are
// smaller than holds of the whole output limit.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, test } from "node:test";
import { ask, Front } from "./claude.mjs";
import { run, served } from "./codex.mjs";
import { startGateway } from "./replay.mjs";

const TURNS = 6;
/** A command that prints 19 KB. */
const COMMAND = "seq 1 4000";
const OUTPUT = 20;
/** How long the vendor generates after it has stated the input, so that the hold falls meanwhile. */
const PAUSE_MS = 200;
/** Bytes of text per token: of the vendor's count, and of the gateway's bound without a count. */
const [COUNTED, BOUND] = [4, 1.5];
/** Micro-rubles per token, at 90.5 rubles for a USDT and a multiplier of 1.15: input that is cached, and output. */
const [WRITE, OUT] = [1.25 * 90.5 * 1.15, 5 * 90.5 * 1.15];

/** The events of an answer that runs `COMMAND` with the client's tool, or that ends the task. */
const ANSWERS = {
  messages: (turn, body, usage) => {
    const tool = turn + 1 < TURNS && body.tools?.some(({ name }) => name === "Bash");
    const input = { command: COMMAND, description: "числа" };
    const block = tool ? { type: "tool_use", id: `toolu_${turn}`, name: "Bash", input: {} } : { type: "text", text: "" };
    const delta = tool
      ? { type: "input_json_delta", partial_json: JSON.stringify(input) }
      : { type: "text_delta", text: "Готово" };
    const message = { id: `msg_${turn}`, type: "message", role: "assistant", model: body.model, content: [] };
    const stop_reason = tool ? "tool_use" : "end_turn";
    const [input_tokens, output_tokens] = usage;
    return [
      { type: "message_start", message: { ...message, stop_reason: null, usage: { input_tokens, output_tokens: 1 } } },
      { type: "content_block_start", index: 0, content_block: block },
      { type: "content_block_delta", index: 0, delta },
      { type: "content_block_stop", index: 0 },
      { type: "message_delta", delta: { stop_reason, stop_sequence: null }, usage: { output_tokens } },
      { type: "message_stop" },
    ];
  },
  responses: (turn, body, usage) => {
    const tool = turn + 1 < TURNS && body.tools?.some(({ name }) => name === "exec_command");
    const call = { type: "function_call", id: `fc_${turn}`, call_id: `call_${turn}`, name: "exec_command" };
    const text = { type: "output_text", text: "Готово", annotations: [] };
    const item = tool
      ? { ...call, arguments: JSON.stringify({ cmd: COMMAND }), status: "completed" }
      : { type: "message", id: `msg_${turn}`, role: "assistant", status: "completed", content: [text] };
    const [input_tokens, output_tokens] = usage;
    const response = { id: `resp_${turn}`, object: "response", created_at: 1, model: body.model, output: [] };
    const counts = { input_tokens, output_tokens, total_tokens: input_tokens + output_tokens };
    return [
      { type: "response.created", response: { ...response, status: "in_progress" } },
      { type: "response.output_item.added", output_index: 0, item: { ...item, arguments: "", content: [] } },
      { type: "response.output_item.done", output_index: 0, item },
      { type: "response.completed", response: { ...response, status: "completed", output: [item], usage: counts } },
    ].map((event, sequence_number) => ({ ...event, sequence_number }));
  },
};

/** The number of calls of tools in a conversation. */
const turns = ({ messages, input }) =>
  (messages ?? []).filter(({ role, content }) => role === "assistant" && content.some?.(({ type }) => type === "tool_use"))
    .length + (input ?? []).filter(({ type }) => type === "function_call").length;

const server = createServer(async (req, res) => {
  const parts = [];
  for await (const part of req) parts.push(part);
  const bytes = Buffer.concat(parts);
  const body = JSON.parse(bytes);
  const format = req.url.startsWith("/v1/messages") ? "messages" : "responses";
  const usage = [Math.ceil(bytes.length / COUNTED), OUTPUT];
  const [first, ...rest] = ANSWERS[format](turns(body), body, usage);
  const write = (event) => res.write(`event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`);
  res.writeHead(200, { "content-type": "text/event-stream" });
  write(first);
  await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  rest.forEach(write);
  res.end();
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const GROWING = 'hold = "growing"\noutput_tokens_per_second_max = 100';
const gateway = await startGateway(
  { url: `http://127.0.0.1:${server.address().port}` },
  ["messages", "responses"].flatMap((format) => [
    { name: `${format}-whole`, format },
    { name: `${format}-growing`, format, fields: GROWING },
  ]),
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
const { Key, micro } = await import("./gateway.mjs");
const key = await Key.create();

const CLIENTS = {
  "Claude Code": async (model) => {
    const env = { ANTHROPIC_AUTH_TOKEN: key.secret };
    const options = ["--allowedTools", "Bash"];
    const report = await ask({ url: front.url, model, text: "Покажи числа", env, options });
    assert.deepEqual([report.is_error, report.result], [false, "Готово"], JSON.stringify(report));
  },
  Codex: async (model) => {
    const config = await served(gateway.url, front);
    const { code, printed } = await run({ secret: key.secret, model, task: "Покажи числа", config });
    assert.equal(code, 0, printed);
    assert.match(printed, /Готово/);
  },
};

/** Runs the task. Returns the calls of the conversation, in micro-rubles. */
async function calls(client, model) {
  front.seen.length = 0;
  await CLIENTS[client](model);
  const conversation = front.calls.filter(({ body }) => body.tools?.length);
  const rows = await Promise.all(
    conversation.map(async ({ number, body }) => {
      const { held_rub, held_max_rub, held_at_end_rub, charged_rub } = await key.receipt(number);
      const bytes = Buffer.byteLength(JSON.stringify(body));
      const [held, most, atEnd, charged] = [held_rub, held_max_rub ?? held_rub, held_at_end_rub ?? held_rub, charged_rub]
        .map(micro)
        .map(Number);
      return { bytes, held, most, atEnd, charged };
    }),
  );
  const rub = (amount) => (amount / 1e6).toFixed(2).padStart(10);
  console.log(`${client}, ${model}\n     bytes  held at start  at most  at the end  charged, ₽`);
  for (const { bytes, held, most, atEnd, charged } of rows) {
    console.log(`${String(bytes).padStart(10)} ${[held, most, atEnd, charged].map(rub).join(" ")}`);
  }
  return rows;
}

for (const [client, format] of [["Claude Code", "messages"], ["Codex", "responses"]]) {
  test(`${client}: holds follow the vendor's counts while the context grows`, async () => {
    const whole = await calls(client, `${format}-whole`);
    const growing = await calls(client, `${format}-growing`);
    assert.deepEqual([whole.length, growing.length], [TURNS, TURNS]);
    for (const [index, call] of [...whole, ...growing].entries()) {
      assert.ok(call.charged <= call.atEnd && call.atEnd <= call.most, JSON.stringify(call));
      assert.ok(call.charged > 0);
      // The first calls of a conversation are bounded by their bytes, later ones by the vendor's count of the earlier part.
      const [now, before] = [call.bytes, [...whole, ...growing][index - 1]?.bytes];
      if (index % TURNS > 1) {
        const input = before / COUNTED + (now - before) / BOUND;
        const output = index < TURNS ? 64_000 : 5_000;
        assert.ok(call.held <= 1.2 * (input * WRITE + output * OUT), `${index}: ${JSON.stringify(call)}`);
      }
    }
    for (const [index, { most }] of growing.entries()) {
      assert.ok(most < whole[index].held / 2, `${index}: ${most} of ${whole[index].held}`);
    }
  });
}
