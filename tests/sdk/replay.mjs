// A vendor that answers with recordings, and a separate gateway in front of it.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createServer } from "node:http";
import { mkdtemp, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const { TOLLGATE_BIN: GATEWAY } = process.env;
const ADMIN_KEY = "admin-key-of-the-recordings-test";
const START_MS_MAX = 10_000;
/** The largest piece into which an answer is cut; the smallest has one byte. */
const PIECE_BYTES_MAX = 96;

/** The recordings in `folder`, under their file names: `{ name, format, stream, status, bytes }`. */
export async function recordings(folder) {
  const names = (await readdir(folder)).filter((name) => /^(chat|messages|responses)-[\w.-]+\.(sse|json)$/.test(name)).sort();
  return Promise.all(
    names.map(async (name) => {
      const [, format] = name.match(/^(chat|messages|responses)-/);
      const [, status = "200"] = name.match(/-error-.*?-(\d{3})(?:-\d+)?\.json$/) ?? [];
      const bytes = await readFile(join(folder, name));
      return { name, format, stream: name.endsWith(".sse"), status: Number(status), bytes };
    }),
  );
}

/** A vendor whose models are recordings. */
export class Vendor {
  #all;
  #server;
  /** The seed that decides where answers are cut; null sends them whole. */
  seed = null;
  /** The request bodies that the vendor received. */
  received = [];

  static async start(all) {
    const vendor = new Vendor();
    vendor.#all = new Map(all.map((recording) => [recording.name, recording]));
    vendor.#server = createServer((req, res) => vendor.#answer(req, res));
    await new Promise((resolve) => vendor.#server.listen(0, "127.0.0.1", resolve));
    return vendor;
  }

  get url() {
    return `http://127.0.0.1:${this.#server.address().port}`;
  }

  stop() {
    this.#server.closeAllConnections();
    this.#server.close();
  }

  async #answer(req, res) {
    const parts = [];
    for await (const part of req) parts.push(part);
    const body = JSON.parse(Buffer.concat(parts));
    this.received.push(body);
    const recording = this.#all.get(body.model);
    const path = { chat: "/v1/chat/completions", messages: "/v1/messages", responses: "/v1/responses" }[recording.format];
    if (req.url !== path || Boolean(body.stream) !== recording.stream) {
      res.writeHead(500).end(`${req.url}, stream ${body.stream}, for ${recording.name}`);
      return;
    }
    const type = recording.stream ? "text/event-stream" : "application/json";
    res.writeHead(recording.status, { "content-type": type });
    res.socket.setNoDelay(true);
    for (const piece of this.seed === null ? [recording.bytes] : pieces(recording.bytes, this.seed)) {
      res.write(piece);
      // Lets the piece leave as a separate packet.
      await new Promise(setImmediate);
    }
    if (recording.cut) res.destroy();
    else res.end();
  }
}

/** `bytes` cut at positions that depend only on `seed`. */
function* pieces(bytes, seed) {
  let state = seed;
  for (let start = 0; start < bytes.length; ) {
    // The generator is mulberry32.
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    const end = start + 1 + ((mixed ^ (mixed >>> 14)) >>> 0) % PIECE_BYTES_MAX;
    yield bytes.subarray(start, end);
    start = end;
  }
}

/**
 * Starts a gateway whose models are the vendor's recordings: `{ url, admin, adminKey, stop }`. The `fields` of a
 * recording are added to the configuration of its model, whose route may be its `route`; `vendors` are further vendors.
 */
export async function startGateway(vendor, all, vendors = "") {
  const folder = await mkdtemp(join(tmpdir(), "tollgate-recordings-"));
  const file = join(folder, "tollgate.toml");
  await writeFile(file, config(vendor, all, vendors));
  const env = { PATH: process.env.PATH, ADMIN_KEY, VENDOR_KEY: "key-of-the-vendor" };
  const gateway = spawn(GATEWAY, ["serve", "--config", file], { env, stdio: ["ignore", "ignore", "pipe"] });
  const kill = () => gateway.kill("SIGKILL");
  process.on("exit", kill);
  let log = "";
  gateway.stderr.setEncoding("utf8").on("data", (text) => (log += text));
  const ended = new Promise((resolve) => gateway.on("exit", resolve).on("error", (error) => resolve((log += error))));
  const ports = async () => {
    for (;;) {
      const found = log.match(/"message":"serving".*?"address":"([^"]+)","admin":"([^"]+)"/);
      if (found) return found.slice(1);
      await sleep(10);
    }
  };
  const [address, admin] = await Promise.race([
    ports(),
    ended.then(() => assert.fail(`the gateway ended:\n${log}`)),
    sleep(START_MS_MAX, undefined, { ref: false }).then(() => assert.fail(`the gateway did not start:\n${log}`)),
  ]);
  return {
    url: `http://${address}`,
    admin: `http://${admin}`,
    adminKey: ADMIN_KEY,
    stop: async () => {
      process.off("exit", kill);
      gateway.kill("SIGTERM");
      await ended;
      await rm(folder, { recursive: true, force: true });
    },
  };
}

function config(vendor, all, vendors) {
  const models = all.map(
    ({ name, format, fields = "", route = `{ vendor = "${format}", model = "${name}" }` }) => `
[[model]]
id = "${name}"
family = "Recordings"
${fields}
usdt_mtok = { input = "1.00", cached_input = "0.10", output = "5.00", cache_write = "1.25" }
output_tokens_max = 64000
routes = [ ${route} ]
`,
  );
  return `
listen = "127.0.0.1:0"
base_url = "http://127.0.0.1/v1"
[admin]
listen = "127.0.0.1:0"
key = "\${ADMIN_KEY}"
[ledger]
url = "memory:"
[[rate.source]]
fixed = "90.50"
[tariff]
sell_rate_multiplier = "1.15"
[[vendor]]
name = "chat"
format = "chat"
url = "${vendor.url}/v1"
key = "\${VENDOR_KEY}"
[[vendor]]
name = "messages"
format = "messages"
url = "${vendor.url}"
key = "\${VENDOR_KEY}"
[[vendor]]
name = "responses"
format = "responses"
url = "${vendor.url}/v1"
key = "\${VENDOR_KEY}"
${vendors}
${models.join("")}`;
}
