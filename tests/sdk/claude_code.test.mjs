// Claude Code with the demo, which has a vendor of each format.

import assert from "node:assert/strict";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, test } from "node:test";
import { ask, classes, Front } from "./claude.mjs";
import { Key, NUMBER, URL, account, cost, forEachModel, micro } from "./gateway.mjs";

const front = await Front.start(URL);
after(() => front.stop());

/** Reasons to refuse a key before a call: `[what, status, text, make]`; `make` returns `{ secret, key }`. */
const REFUSED = [
  ["a key that is not known", 401, /Неизвестный ключ API/, async () => ({ secret: `sk-${"0".repeat(40)}` })],
  [
    "a ceiling that is used up",
    401,
    /Лимит расходов ключа API исчерпан/,
    async (model) => {
      const key = await Key.create();
      const body = { model, max_tokens: 8, messages: [{ role: "user", content: "Привет" }] };
      const headers = { "x-api-key": key.secret, "anthropic-version": "2023-06-01", "content-type": "application/json" };
      const answer = await fetch(`${URL}/v1/messages`, { method: "POST", headers, body: JSON.stringify(body) });
      assert.equal(answer.status, 200, await answer.text());
      await key.spent();
      const { spent_rub } = await key.view();
      await key.change({ ceiling_rub: spent_rub });
      return { secret: key.secret, key };
    },
  ],
  [
    "an account without funds",
    401,
    /На балансе компании нет средств/,
    async () => {
      const key = await Key.create({ account: await account() });
      return { secret: key.secret, key };
    },
  ],
  [
    "a call that does not fit into what is left",
    403,
    /Запрос не помещается в остаток/,
    async () => {
      const key = await Key.create({ ceiling_rub: "0.01" });
      return { secret: key.secret, key };
    },
  ],
];

/** Runs Claude Code through the recording proxy, whose earlier records are deleted first. */
function claude(model, text, env, more = {}) {
  front.seen.length = 0;
  return ask({ url: front.url, model, text, env, ...more });
}

/** Checks that the recorded calls each cost what the catalog states, and that the key paid for nothing else. */
async function assertCharged(key, model, report, calls) {
  assert.equal(front.calls.length, calls);
  const numbers = front.calls.map(({ number }) => number);
  const receipts = await Promise.all(numbers.map((number) => key.receipt(number)));
  for (const { usage, charged_rub, estimated } of receipts) {
    assert.equal(micro(charged_rub), await cost(model, usage));
    assert.equal(estimated, false);
  }
  const sum = (name) => receipts.reduce((sum, { usage }) => sum + usage[name], 0);
  const reported = classes(report);
  assert.deepEqual(Object.fromEntries(Object.keys(reported).map((name) => [name, sum(name)])), reported);
  await key.assertSpent(...receipts.map(({ charged_rub }) => micro(charged_rub)));
}

forEachModel("messages", ({ model }) => {
  for (const variable of ["ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY"]) {
    test(`a key in ${variable} gets an answer and is charged at the catalog's prices`, async () => {
      const key = await Key.create();
      const report = await claude(model, "Пароль: зимородок", { [variable]: key.secret });
      assert.equal(report.is_error, false, report.result);
      assert.match(report.result, /Вы написали:[^]*Пароль: зимородок/);
      assert.equal(report.num_turns, 1);
      await assertCharged(key, model, report, 1);
    });
  }

  test("a tool runs and its result is sent back", async () => {
    const key = await Key.create();
    // The answer contains this word, which only the shell puts together, only if the command ran.
    const text = `run-tool Bash ${JSON.stringify({ command: "echo зимо''родок; expr 6 '*' 7" })}`;
    const options = ["--allowedTools", "Bash"];
    const report = await claude(model, text, { ANTHROPIC_AUTH_TOKEN: key.secret }, { options });
    assert.equal(report.is_error, false, report.result);
    assert.match(report.result, /^Результат: [^]*зимородок[^]*42/);
    assert.deepEqual([report.num_turns, report.permission_denials], [2, []]);
    await assertCharged(key, model, report, 2);
  });

  test("files are read, edited, written and run in consecutive calls, each streamed and charged", async () => {
    const key = await Key.create();
    const file = "птицы.txt";
    const call = (tool, input) => `run-tool ${tool} ${JSON.stringify(input)}`;
    const text = (home) =>
      [
        call("Read", { file_path: join(home, file) }),
        call("Edit", { file_path: join(home, file), old_string: "сойка", new_string: "зимородок" }),
        call("Write", { file_path: join(home, "run.sh"), content: `wc -l < ${file}; cat ${file}` }),
        call("Bash", { command: "sh run.sh" }),
      ].join(" ");
    const report = await claude(model, text, { ANTHROPIC_AUTH_TOKEN: key.secret }, {
      options: ["--allowedTools", "Read,Edit,Write,Bash"],
      before: (home) => writeFile(join(home, file), "дрозд\nсойка\n"),
      after: async (home) => assert.equal(await readFile(join(home, file), "utf8"), "дрозд\nзимородок\n"),
    });
    assert.equal(report.is_error, false, report.result);
    assert.match(report.result, /^Результат: 2\nдрозд\nзимородок/);
    assert.deepEqual([report.num_turns, report.permission_denials], [5, []]);
    assert.ok(front.calls.every(({ body }) => body.stream));
    await assertCharged(key, model, report, 5);
  });

  for (const [what, status, says, make] of REFUSED) {
    test(`after ${what}, Claude Code ends at once, with ${status} and the request number`, async () => {
      const { secret, key } = await make(model);
      const spent = await key?.spent();
      const report = await claude(model, "Привет", { ANTHROPIC_AUTH_TOKEN: secret });
      assert.deepEqual([report.is_error, report.api_error_status], [true, status], report.result);
      const [call, ...more] = front.calls;
      assert.deepEqual([call.status, more], [status, []]);
      const shown = new RegExp(`^Failed to authenticate\\. API Error: ${status} ${says.source}[^]* \\((${NUMBER.source})\\)$`);
      assert.equal(report.result.match(shown)?.[1], call.number, report.result);
      assert.equal(await key?.spent(), spent);
    });
  }
});
