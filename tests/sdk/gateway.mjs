// Shared code of the Node suites: the operator's API, receipts, computation of prices, and the promises for every SDK.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { describe, test } from "node:test";

export const { TOLLGATE_URL: URL, TOLLGATE_ADMIN_URL: ADMIN_URL, TOLLGATE_ADMIN_KEY: ADMIN_KEY } = process.env;
/** The form of a request number. */
export const NUMBER = /[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}/;
const SETTLE_MS_MAX = 2000;
const CLASSES = {
  input: "input_rub_mtok",
  cached_input: "cached_input_rub_mtok",
  cache_write: "cache_write_rub_mtok",
  output: "output_rub_mtok",
};

/** Converts decimal rubles to micro-rubles (or rubles per million tokens to micro-rubles per million tokens). */
export function micro(rubles) {
  const [whole, fraction = ""] = String(rubles).split(".");
  assert.match(fraction, /^\d{0,6}$/, `${rubles}: more than six digits after the point`);
  return BigInt(whole) * 1_000_000n + BigInt(fraction.padEnd(6, "0"));
}

/** Calls the operator's API; null if the resource does not exist. */
export async function admin(method, path, body) {
  const headers = { authorization: `Bearer ${ADMIN_KEY}`, "content-type": "application/json" };
  const response = await fetch(`${ADMIN_URL}/admin/v1${path}`, { method, headers, body: body && JSON.stringify(body) });
  const text = await response.text();
  if (response.status === 404 && method === "GET") return null;
  assert.ok(response.ok, `${method} ${path} ${JSON.stringify(body)}: ${response.status} ${text}`);
  return text && JSON.parse(text);
}

/** Creates an account with this many rubles. */
export async function account(rubles) {
  const id = `sdk-${randomBytes(6).toString("hex")}`;
  await admin("POST", "/accounts", { id, name: "SDK tests" });
  if (rubles) await admin("POST", `/accounts/${id}/topups`, { id: `topup-${id}`, amount_rub: rubles });
  return id;
}

const once = (make) => {
  let made;
  return () => (made ??= make());
};
const fundedAccount = once(() => account("100000"));
const catalog = once(async () => (await fetch(`${URL}/v1/tollgate/models`)).json());

/** Micro-rubles for tokens by class at the catalog's rates, rounded up once. */
export async function cost(model, usage) {
  const { priced, models } = await catalog();
  const rates = models.find((entry) => entry.id === model);
  assert.ok(priced && rates, `no price of ${model} in the catalog: ${JSON.stringify({ priced, models })}`);
  // An embedding model has only a rate for input.
  const price = ([name, rate]) => BigInt(usage[name]) * micro(rates[rate] ?? 0);
  const sum = Object.entries(CLASSES).reduce((sum, entry) => sum + price(entry), 0n);
  return (sum + 999_999n) / 1_000_000n;
}

/** A new key, so that all its spending comes from the current test. */
export class Key {
  static async create({ account: id, ...limits } = {}) {
    const path = `/accounts/${id ?? (await fundedAccount())}/keys`;
    const created = await admin("POST", path, { name: "sdk test", ...limits });
    return Object.assign(new Key(), { id: created.id, secret: created.key });
  }

  view() {
    return admin("GET", `/keys/${this.id}`);
  }

  change(fields) {
    return admin("PATCH", `/keys/${this.id}`, fields);
  }

  delete() {
    return admin("DELETE", `/keys/${this.id}`);
  }

  /** The spending in micro-rubles once nothing is held, because calls are charged after their answer. */
  async spent() {
    const view = await until((view) => micro(view.held_rub) === 0n, () => this.view(), "the key still holds money");
    return micro(view.spent_rub);
  }

  receipt(number) {
    return until((receipt) => receipt, () => admin("GET", `/receipts/${number}`), `no receipt ${number}`);
  }

  /** Checks that the key paid the sum of these charges. */
  async assertSpent(...charges) {
    const sum = charges.reduce((sum, charge) => sum + charge, 0n);
    assert.equal(await this.spent(), sum, "the key paid another sum than its receipts say");
  }

  /** Checks that the call with this request number cost the catalog's price of `usage`. Returns its charge. */
  async assertCharged(number, model, usage) {
    const receipt = await this.receipt(number);
    assert.equal(receipt.model, model);
    assert.deepEqual(receipt.usage, usage, "the receipt's tokens are not the answer's");
    const charged = micro(receipt.charged_rub);
    assert.equal(charged, await cost(model, usage), "not the catalog's price");
    assert.ok(charged > 0n);
    assert.deepEqual([receipt.end, receipt.estimated], ["finished", false]);
    return charged;
  }
}

async function until(good, look, complaint) {
  const deadline = performance.now() + SETTLE_MS_MAX;
  for (;;) {
    const seen = await look();
    if (good(seen)) return seen;
    assert.ok(performance.now() < deadline, `${complaint} after ${SETTLE_MS_MAX} ms: ${JSON.stringify(seen)}`);
    await sleep(20);
  }
}

/** A `fetch` that records its requests and answers. */
export class Wire {
  requests = [];
  responses = [];
  fetch = async (url, init) => {
    this.requests.push(new Request(url, { method: init.method, headers: init.headers }));
    const response = await fetch(url, init);
    this.responses.push(response);
    return response;
  };

  /** The request number of the latest call. */
  get number() {
    return this.responses.at(-1)?.headers.get("x-request-id");
  }
}

/**
 * Tests the same promises with each model: the vendor of one model speaks the SDK's format, the vendors of the others
 * do not.
 */
export function forEachModel(format, promises) {
  for (const vendorFormat of ["chat", "messages", "responses"]) {
    const model = `demo-${vendorFormat}`;
    const otherModel = vendorFormat === "chat" ? "demo-messages" : "demo-chat";
    const translated = vendorFormat !== format;
    // Vendors of the responses format have no stop sequences, and accept no output maximum below 16.
    const [stops, tokensMax] = vendorFormat === "responses" ? [false, 16] : [true, 3];
    describe(`${model}:`, () => promises({ model, otherModel, translated, stops, tokensMax }));
  }
}

/** A new key, and an SDK client with this key that records its requests and answers. */
export async function asker(suite, { key, ...options } = {}) {
  key ??= await Key.create();
  const wire = new Wire();
  const client = suite.client(key.secret, { fetch: wire.fetch, timeout: 20_000, ...options });
  const charged = (usage) => key.assertCharged(wire.number, suite.model, suite.classes(usage));
  return { key, wire, client, charged };
}

/**
 * A text that does not fit into an answer of `tokensMax` tokens, and the part of it that such an answer has. Two words
 * of the answer come from the vendor's script.
 */
export function cutAt(tokensMax) {
  return ["раз ".repeat(tokensMax), `Вы написали: ${"раз ".repeat(tokensMax - 2)}`];
}

/**
 * The promises of both formats. `suite` defines how its SDK is called: `{ sdk, model, otherModel, translated,
 * client(secret, options), ask(client, text, params), classes(usage), isWhole(stream), dropped }`. `dropped` has
 * parameters without a counterpart in the other format.
 */
export function sharedPromises(suite) {
  const { sdk, model, otherModel, ask } = suite;

  /** Makes a call and returns its error, after checking that it has this class and status, and the request number. */
  async function refusal(kind, status, { key, text, call = ask, ...params } = {}) {
    const { wire, client } = await asker(suite, { key, maxRetries: 0 });
    const error = await rejection(call(client, text, params));
    assert.ok(error instanceof kind, `${error.constructor.name}, not ${kind.name}: ${error.message}`);
    assert.equal(error.status, status, error.message);
    assert.match(wire.number ?? "", NUMBER);
    assert.ok(message(error).endsWith(`(${wire.number})`), `"${message(error)}" does not end with (${wire.number})`);
    assert.equal(error.requestID, wire.number, "the SDK shows another request id than the text");
    return error;
  }

  // Keys

  test("the key that the demo printed works", async () => {
    const { client } = await asker(suite, { key: { secret: process.env.TOLLGATE_KEY } });
    await ask(client);
  });

  test("a malformed key is 401", () => refusal(sdk.AuthenticationError, 401, { key: { secret: "tg-unknown" } }));

  test("a deleted key is 401", async () => {
    const key = await Key.create();
    await key.delete();
    await refusal(sdk.AuthenticationError, 401, { key });
  });

  test("a disabled key is 401", async () => {
    const key = await Key.create();
    await key.change({ status: "disabled" });
    await refusal(sdk.AuthenticationError, 401, { key });
    await key.assertSpent();
  });

  test("an empty account is 401", async () => {
    await refusal(sdk.AuthenticationError, 401, { key: await Key.create({ account: await account() }) });
  });

  test("a key that used up its ceiling is 401", async () => {
    const { key, wire, client } = await asker(suite);
    await ask(client);
    await key.receipt(wire.number);
    const spent = await key.spent();
    await key.change({ ceiling_rub: (await key.view()).spent_rub });
    await refusal(sdk.AuthenticationError, 401, { key });
    await key.assertSpent(spent);
  });

  test("a call beyond the ceiling is 403", async () => {
    const key = await Key.create({ ceiling_rub: "0.000001" });
    await refusal(sdk.PermissionDeniedError, 403, { key });
    await key.assertSpent();
  });

  test("a model that the key may not call is 403", async () => {
    const key = await Key.create({ models: [otherModel] });
    await refusal(sdk.PermissionDeniedError, 403, { key });
    await key.assertSpent();
  });

  test("the models that the key may call are listed", async () => {
    const ids = async (client) => (await collect(client.models.list())).map((entry) => entry.id);
    const all = await ids((await asker(suite)).client);
    for (const id of [model, otherModel]) assert.ok(all.includes(id), `${id} is not among ${all}`);
    assert.deepEqual(await ids((await asker(suite, { key: await Key.create({ models: [model] }) })).client), [model]);
  });

  test("a model that the key may call is shown as it is listed", async () => {
    const { client } = await asker(suite);
    const listed = (await collect(client.models.list())).find((entry) => entry.id === model);
    assert.deepEqual({ ...(await client.models.retrieve(model)) }, { ...listed });
  });

  test("reading a model that the key may not call is 404", async () => {
    const key = await Key.create({ models: [model] });
    for (const name of [otherModel, "acme/no such model"]) {
      const call = (client) => client.models.retrieve(name);
      const error = await refusal(sdk.NotFoundError, 404, { key, call });
      assert.ok(message(error).includes(`«${name}»`), message(error));
    }
  });

  // Requests

  test("max_tokens of zero is 400 and named", async () => {
    const key = await Key.create();
    const error = await refusal(sdk.BadRequestError, 400, { key, max_tokens: 0 });
    assert.match(message(error), /max_tokens/);
    await key.assertSpent();
  });

  test("a plain answer has its cost in a header", async () => {
    const { wire, client, charged } = await asker(suite);
    const { usage } = await ask(client);
    assert.equal(micro(wire.responses.at(-1).headers.get("x-cost-rub")), await charged(usage));
  });

  test("parameters without a counterpart in the other format change nothing", async () => {
    const { client, charged } = await asker(suite);
    const { usage } = await ask(client, undefined, suite.dropped);
    const plain = await ask(client);
    assert.deepEqual(usage, plain.usage);
    await charged(plain.usage);
  });

  // A vendor of the same format may support the field, so it gets every byte. A field that would have to be translated
  // is unknown, and dropping it silently could change the answer.
  test("an unknown field is forwarded or named in a refusal", async () => {
    const key = await Key.create();
    const params = { key, field_of_tomorrow: 1 };
    if (suite.translated) {
      assert.match(message(await refusal(sdk.BadRequestError, 400, params)), /field_of_tomorrow/);
      await key.assertSpent();
    } else {
      const { client } = await asker(suite, { key });
      await ask(client, undefined, { field_of_tomorrow: 1 });
    }
  });

  test("an unknown model is 503 and the SDK does not retry", async () => {
    const { key, wire, client } = await asker(suite, { maxRetries: 2 });
    const error = await rejection(ask(client, undefined, { model: "demo-no-such-model" }));
    assert.ok(error instanceof sdk.InternalServerError, error.message);
    assert.equal(error.status, 503);
    assert.equal(error.headers.get("x-should-retry"), "false");
    assert.equal(wire.requests.length, 1, "the SDK tried again");
    await key.assertSpent();
  });

  // Vendors

  test("a vendor's limit is 429 with retry-after", async () => {
    const key = await Key.create();
    const error = await refusal(sdk.RateLimitError, 429, { key, text: "vendor-429" });
    assert.match(error.headers.get("retry-after") ?? "", /^[1-9]\d*$/);
    await key.assertSpent();
  });

  test("a refusal of the vendor is returned as 400", async () => {
    const key = await Key.create();
    await refusal(sdk.BadRequestError, 400, { key, text: "vendor-400" });
    await key.assertSpent();
  });

  test("an error of the vendor is 5xx", async () => {
    const { key, wire, client } = await asker(suite, { maxRetries: 0 });
    const error = await rejection(ask(client, "vendor-500"));
    assert.ok(error instanceof sdk.InternalServerError, error.message);
    assert.ok([502, 503].includes(error.status), error.message);
    assert.ok(message(error).endsWith(`(${wire.number})`), message(error));
    await key.assertSpent();
  });

  test("a cut stream does not look complete, and its receipt has the cost", async () => {
    const { key, wire, client } = await asker(suite);
    const text = `vendor-cut: ${"обрыв на полуслове ".repeat(8)}`;
    try {
      assert.ok(!(await suite.isWhole(await ask(client, text, { stream: true }))), "a cut stream looks whole");
    } catch (error) {
      // Node's own `fetch` reports a body that breaks off as `TypeError: terminated`.
      if (!(error instanceof sdk.APIError) && error.message !== "terminated") throw error;
    }
    const receipt = await key.receipt(wire.number);
    assert.equal(receipt.end, "vendor_cut");
    await key.assertSpent(micro(receipt.charged_rub));
  });
}

/** All items of `iterable`; Node 20 has no `Array.fromAsync`. */
export async function collect(iterable) {
  const all = [];
  for await (const item of iterable) all.push(item);
  return all;
}

async function rejection(promise) {
  const answer = await promise.then((answer) => answer, (error) => ({ error }));
  assert.ok(answer.error instanceof Error, `answered instead of refusing: ${JSON.stringify(answer)}`);
  return answer.error;
}

/** The text of an error in the chat format. Both SDKs have it in `error`, one of them within its wrapper object. */
function message(error) {
  const body = error.error?.error ?? error.error;
  assert.equal(typeof body?.message, "string", `the error's body is not in the error shape: ${error.message}`);
  return body.message;
}
