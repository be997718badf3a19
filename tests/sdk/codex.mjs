// Codex CLI, headless, in its own home folder.

import { execFile } from "node:child_process";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const CODEX = fileURLToPath(new globalThis.URL("node_modules/.bin/codex", import.meta.url));
const TIMEOUT_MS = 90_000;

/** The file that the gateway at `url` serves for Codex, with the address of `front` instead of the gateway's. */
export async function served(url, front) {
  const file = await (await fetch(`${url}/v1/tollgate/connect/codex`)).text();
  return file.replaceAll(/http:\/\/127\.0\.0\.1(:\d+)?(?=\/)/g, front.url);
}

/** Runs a task. Returns the exit code, the output, and the contents of `files` after the task. */
export async function run({ secret, model, task, config, files = [], options = [] }) {
  const home = await mkdtemp(join(tmpdir(), "codex-"));
  const work = join(home, "work");
  await mkdir(work);
  await writeFile(join(home, "config.toml"), config);
  const env = { PATH: process.env.PATH, HOME: home, CODEX_HOME: home, LANG: "C.UTF-8", TOLLGATE_KEY: secret };
  const args = ["exec", "-m", model, "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", ...options];
  try {
    const { error, out, errors } = await new Promise((resolve) => {
      const child = execFile(CODEX, [...args, task], { cwd: work, env, timeout: TIMEOUT_MS }, (error, out, errors) =>
        resolve({ error, out, errors }),
      );
      child.stdin.end();
    });
    const made = await Promise.all(files.map((file) => readFile(join(work, file), "utf8").catch(() => null)));
    // Codex warns that its home is a temporary folder, which is intended here.
    const printed = (out + errors).replace(/^WARNING: proceeding, even though .*PATH aliases.*$/m, "");
    return { code: error ? error.code : 0, out, printed, made };
  } finally {
    await rm(home, { recursive: true, force: true });
  }
}
