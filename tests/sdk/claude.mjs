// Claude Code, headless, in its own home folder, and the requests that it sends to a gateway.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { createServer, request } from "node:http";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const CLAUDE = fileURLToPath(new globalThis.URL("node_modules/.bin/claude", import.meta.url));
const TIMEOUT_MS = 90_000;

/** A proxy in front of a gateway that records all requests and answers. */
export class Front {
  #gateway;
  #server;
  /** Requests in the order of their answers: `{ method, path, headers, body, status, number }`. */
  seen = [];

  static async start(gateway) {
    const front = new Front();
    front.#gateway = new globalThis.URL(gateway);
    front.#server = createServer((req, res) => front.#pass(req, res));
    await new Promise((resolve) => front.#server.listen(0, "127.0.0.1", resolve));
    return front;
  }

  get url() {
    return `http://127.0.0.1:${this.#server.address().port}`;
  }

  /** The recorded model calls. */
  get calls() {
    return this.seen.filter(({ method, path }) => method === "POST" && /^\/v1\/(messages\?|responses$)/.test(path));
  }

  /** The first recorded request that begins with `what`, like `HEAD /`. */
  find(what) {
    const found = this.seen.find(({ method, path }) => `${method} ${path}`.startsWith(what));
    assert.ok(found, `no ${what} among ${this.seen.map(({ method, path }) => `${method} ${path}`)}`);
    return found;
  }

  stop() {
    this.#server.closeAllConnections();
    this.#server.close();
  }

  async #pass(req, res) {
    const parts = [];
    for await (const part of req) parts.push(part);
    const { method, url: path, headers } = req;
    const { hostname, port } = this.#gateway;
    const onward = request({ hostname, port, method, path, headers }, (answer) => {
      const body = parts.length ? JSON.parse(Buffer.concat(parts)) : null;
      const { statusCode: status, headers: answered } = answer;
      this.seen.push({ method, path, headers, body, status, number: answered["x-request-id"] });
      res.writeHead(status, answered);
      answer.pipe(res);
    });
    onward.on("error", () => res.destroy());
    onward.end(Buffer.concat(parts));
  }
}

/**
 * Runs Claude Code with `model` at `url`. Returns the report that `--output-format json` prints, even for a failure. If
 * `text` is a function, it gets the home folder, as do `before` and `after`. The home folder is also the working
 * folder.
 */
export async function ask({ url, model, text, env = {}, options = [], before, after }) {
  const home = await mkdtemp(join(tmpdir(), "tollgate-claude-"));
  // Of the outer shell's variables only PATH is passed: variables for models would change what the tool calls.
  const child = {
    cwd: home,
    env: {
      PATH: process.env.PATH,
      HOME: home,
      LANG: "C.UTF-8",
      ANTHROPIC_BASE_URL: url,
      ANTHROPIC_DEFAULT_HAIKU_MODEL: model,
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
      DISABLE_AUTOUPDATER: "1",
      DISABLE_ERROR_REPORTING: "1",
      DISABLE_TELEMETRY: "1",
      ...env,
    },
    timeout: TIMEOUT_MS,
    killSignal: "SIGKILL",
  };
  const said = typeof text === "function" ? text(home) : text;
  const args = ["-p", said, "--model", model, "--output-format", "json", ...options];
  try {
    await before?.(home);
    const report = await new Promise((resolve, reject) => {
      const claude = execFile(CLAUDE, args, child, (error, stdout, stderr) => {
        try {
          resolve(JSON.parse(stdout));
        } catch {
          reject(new Error(`claude printed no report: ${error ?? ""}\n${stdout}\n${stderr}`));
        }
      });
      claude.stdin.end();
    });
    await after?.(home);
    return report;
  } finally {
    await rm(home, { recursive: true, force: true });
  }
}

/** Tokens by rate class, summed over all calls. */
export const classes = ({ usage }) => ({
  input: usage.input_tokens,
  cached_input: usage.cache_read_input_tokens,
  cache_write: usage.cache_creation_input_tokens,
  output: usage.output_tokens,
});
