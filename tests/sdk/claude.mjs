// Claude Code, headless, in a home of its own, and what it asks a gateway for.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { createServer, request } from "node:http";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const CLAUDE = fileURLToPath(new globalThis.URL("node_modules/.bin/claude", import.meta.url));
const TIMEOUT_MS = 90_000;

/** Stands in front of a gateway and notes what goes by. */
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

  /** The calls of a model. */
  get calls() {
    return this.seen.filter(({ method, path }) => method === "POST" && /^\/v1\/(messages\?|responses$)/.test(path));
  }

  /** What a request beginning with `what`, like `HEAD /`, was answered. */
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
 * Asks `model` at `url`; answers the report that `--output-format json` prints, of a failure too. `text`, where it is a
 * function, `before` and `after` are given the home, which is also the working folder.
 */
export async function ask({ url, model, text, env = {}, options = [], before, after }) {
  const home = await mkdtemp(join(tmpdir(), "tollgate-claude-"));
  // Nothing of the outer shell but PATH: its own model variables would lead the tool elsewhere.
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

/** Tokens by rate class, of all the calls together. */
export const classes = ({ usage }) => ({
  input: usage.input_tokens,
  cached_input: usage.cache_read_input_tokens,
  cache_write: usage.cache_creation_input_tokens,
  output: usage.output_tokens,
});
