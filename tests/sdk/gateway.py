"""Shared code of the Python suites: the operator's API, receipts, computation of prices, and the promises for every SDK."""

import functools
import json
import os
import secrets
import sys
import time
import unittest
import urllib.error
import urllib.request
from decimal import ROUND_CEILING, Decimal

URL = os.environ["TOLLGATE_URL"]
ADMIN_URL = os.environ["TOLLGATE_ADMIN_URL"]
ADMIN_KEY = os.environ["TOLLGATE_ADMIN_KEY"]
NUMBER = r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
SETTLE_SECONDS_MAX = 2
CLASSES = {
    "input": "input_rub_mtok",
    "cached_input": "cached_input_rub_mtok",
    "cache_write": "cache_write_rub_mtok",
    "output": "output_rub_mtok",
}


def admin(method, path, body=None):
    """Calls the operator's API; None if the resource does not exist."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"authorization": "Bearer " + ADMIN_KEY, "content-type": "application/json"}
    request = urllib.request.Request(ADMIN_URL + "/admin/v1" + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.loads(response.read() or b"null")
    except urllib.error.HTTPError as error:
        if error.code == 404 and method == "GET":
            return None
        text = error.read().decode("utf-8", "replace")
        raise AssertionError(f"{method} {path} {body}: {error.code} {text}") from None


def account(rubles):
    """Creates an account with this many rubles."""
    name = "sdk-" + secrets.token_hex(6)
    admin("POST", "/accounts", {"id": name, "name": "SDK tests"})
    if rubles:
        admin("POST", f"/accounts/{name}/topups", {"id": "topup-" + name, "amount_rub": rubles})
    return name


@functools.lru_cache(maxsize=None)
def funded_account():
    return account("100000")


@functools.lru_cache(maxsize=None)
def catalog():
    with urllib.request.urlopen(URL + "/v1/tollgate/models", timeout=10) as response:
        return json.loads(response.read())


def cost(model, usage):
    """Rubles for tokens by class at the catalog's rates, rounded up once to the micro-ruble."""
    rates = next((entry for entry in catalog()["models"] if entry["id"] == model), None)
    assert rates and catalog()["priced"], f"no price of {model} in the catalog: {catalog()}"
    # Rubles per million tokens are micro-rubles per token.
    # An embedding model has only a rate for input.
    micro = sum(usage[name] * Decimal(rates[rate] or 0) for name, rate in CLASSES.items())
    return micro.to_integral_value(ROUND_CEILING) / 1_000_000


class Key:
    """Creates a key, so that all its spending comes from the current test."""

    def __init__(self, account_id=None, **limits):
        limits.setdefault("name", "sdk test")
        created = admin("POST", f"/accounts/{account_id or funded_account()}/keys", limits)
        self.id, self.secret = created["id"], created["key"]

    def view(self):
        return admin("GET", "/keys/" + self.id)

    def change(self, **fields):
        admin("PATCH", "/keys/" + self.id, fields)

    def delete(self):
        admin("DELETE", "/keys/" + self.id)

    def spent(self):
        """The spending once nothing is held, because calls are charged after their answer."""
        view = self.until(lambda view: Decimal(view["held_rub"]) == 0, self.view, "the key still holds money")
        return Decimal(view["spent_rub"])

    def receipt(self, number):
        return self.until(lambda receipt: receipt, lambda: admin("GET", "/receipts/" + number), f"no receipt {number}")

    @staticmethod
    def until(good, look, complaint):
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while not good(seen := look()):
            assert time.monotonic() < deadline, f"{complaint} after {SETTLE_SECONDS_MAX} s: {seen}"
            time.sleep(0.02)
        return seen


class Wire:
    """An SDK's own HTTP client that records its requests and answers."""

    def __init__(self, sdk):
        self.requests, self.responses = [], []
        hooks = {"request": [self.requests.append], "response": [self.responses.append]}
        self.http_client = sdk.DefaultHttpxClient(event_hooks=hooks)

    @property
    def number(self):
        """The request number of the latest call."""
        return self.responses[-1].headers.get("x-request-id")


class Suite(unittest.TestCase):
    """The promises of both formats. Each suite defines how its SDK is called."""

    sdk = None
    # Fields of the suite's format without a counterpart in the other format.
    dropped = None
    # The model that is called, another model, and whether the called model's vendor speaks another format.
    model = None
    other_model = None
    translated = False

    def client(self, secret, **options):
        """A client of the SDK that records its requests and answers in `self.wire`."""
        raise NotImplementedError

    def ask(self, client, text="Привет", **params):
        """Sends one plain question. The answer is not streamed unless `stream=True`."""
        raise NotImplementedError

    def classes(self, usage):
        """Tokens by rate class."""
        raise NotImplementedError

    def setUp(self):
        self.key = Key()
        self.asker = self.client(self.key.secret)

    def assert_charged(self, usage, key=None):
        """Checks that the latest call cost the catalog's price of `usage`, and that the key paid its receipt."""
        key = key or self.key
        receipt = key.receipt(self.wire.number)
        self.assertEqual(receipt["model"], self.model)
        self.assertEqual(receipt["usage"], usage, "the receipt's tokens are not the answer's")
        self.assertEqual(Decimal(receipt["charged_rub"]), cost(self.model, usage), "not the catalog's price")
        self.assertGreater(Decimal(receipt["charged_rub"]), 0)
        self.assertEqual((receipt["end"], receipt["estimated"]), ("finished", False))
        return Decimal(receipt["charged_rub"])

    def assert_spent(self, *charges, key=None):
        self.assertEqual((key or self.key).spent(), sum(charges), "the key paid another sum than its receipts say")

    def refusal(self, kind, status, key=None, ask=None, **params):
        """Makes a call and returns its error, after checking that it has this class and the request number, and cost
        nothing."""
        key = key or self.key
        client = self.client(key.secret, max_retries=0)
        with self.assertRaises(kind) as caught:
            (ask or self.ask)(client, **params)
        error = caught.exception
        self.assertEqual(error.status_code, status, error)
        number, text = self.wire.number, self.message(error)
        self.assertRegex(number or "", NUMBER)
        self.assertTrue(text.endswith(f"({number})"), f"{text!r} does not end with ({number})")
        self.assertEqual(error.request_id, number, "the SDK shows another request id than the text")
        return error

    @staticmethod
    def message(error):
        assert isinstance(error.body, dict), f"the error's body is not in the error shape: {error.body!r}"
        return error.body.get("error", error.body)["message"]

    # Keys

    def test_key_that_the_demo_printed_works(self):
        self.ask(self.client(os.environ["TOLLGATE_KEY"]))

    def test_malformed_key_is_401(self):
        self.key.secret = "tg-unknown"
        self.refusal(self.sdk.AuthenticationError, 401)

    def test_deleted_key_is_401(self):
        self.key.delete()
        self.refusal(self.sdk.AuthenticationError, 401)

    def test_disabled_key_is_401(self):
        self.key.change(status="disabled")
        self.refusal(self.sdk.AuthenticationError, 401)
        self.assert_spent(0)

    def test_empty_account_is_401(self):
        self.refusal(self.sdk.AuthenticationError, 401, key=Key(account(None)))

    def test_key_that_used_up_its_ceiling_is_401(self):
        self.ask(self.asker)
        self.key.receipt(self.wire.number)
        spent = self.key.spent()
        self.key.change(ceiling_rub=str(spent))
        self.refusal(self.sdk.AuthenticationError, 401)
        self.assert_spent(spent)

    def test_call_beyond_the_ceiling_is_403(self):
        key = Key(ceiling_rub="0.000001")
        self.refusal(self.sdk.PermissionDeniedError, 403, key=key)
        self.assert_spent(0, key=key)

    def test_model_that_the_key_may_not_call_is_403(self):
        key = Key(models=[self.other_model])
        self.refusal(self.sdk.PermissionDeniedError, 403, key=key)
        self.assert_spent(0, key=key)

    def test_models_that_the_key_may_call_are_listed(self):
        ids = [model.id for model in self.asker.models.list()]
        self.assertIn(self.model, ids)
        self.assertIn(self.other_model, ids)
        client = self.client(Key(models=[self.model]).secret)
        self.assertEqual([model.id for model in client.models.list()], [self.model])

    def test_model_that_the_key_may_call_is_shown_as_it_is_listed(self):
        listed = next(model for model in self.asker.models.list() if model.id == self.model)
        self.assertEqual(self.asker.models.retrieve(self.model).model_dump(), listed.model_dump())

    def test_reading_a_model_that_the_key_may_not_call_is_404(self):
        key = Key(models=[self.model])
        for name in (self.other_model, "acme/no such model"):
            ask = lambda client: client.models.retrieve(name)
            error = self.refusal(self.sdk.NotFoundError, 404, key=key, ask=ask)
            self.assertIn(f"«{name}»", self.message(error))

    # Requests

    def test_max_tokens_of_zero_is_400_and_named(self):
        error = self.refusal(self.sdk.BadRequestError, 400, max_tokens=0)
        self.assertIn("max_tokens", self.message(error))
        self.assert_spent(0)

    def test_parameters_without_a_counterpart_in_the_other_format_change_nothing(self):
        usage = self.ask(self.asker, extra_body=self.dropped).usage
        self.assertEqual(usage, self.ask(self.asker).usage)
        self.assert_charged(self.classes(usage))

    def test_plain_answer_has_its_cost_in_a_header(self):
        usage = self.ask(self.asker).usage
        cost_header = self.wire.responses[-1].headers["x-cost-rub"]
        self.assertEqual(self.assert_charged(self.classes(usage)), Decimal(cost_header))

    def test_unknown_field_is_forwarded_or_named_in_a_refusal(self):
        # A vendor of the same format may support the field, so it gets every byte. A field that would have to be
        # translated is unknown, and dropping it silently could change the answer.
        params = {"extra_body": {"field_of_tomorrow": 1}}
        if self.translated:
            error = self.refusal(self.sdk.BadRequestError, 400, **params)
            self.assertIn("field_of_tomorrow", self.message(error))
            self.assert_spent(0)
        else:
            self.ask(self.asker, **params)

    def test_unknown_model_is_503_and_the_sdk_does_not_retry(self):
        client = self.client(self.key.secret, max_retries=2)
        with self.assertRaises(self.sdk.InternalServerError) as caught:
            self.ask(client, model="demo-no-such-model")
        self.assertEqual(caught.exception.status_code, 503)
        self.assertEqual(caught.exception.response.headers.get("x-should-retry"), "false")
        self.assertEqual(len(self.wire.requests), 1, "the SDK tried again")
        self.assert_spent(0)

    # Vendors

    def test_vendor_limit_is_429_with_retry_after(self):
        error = self.refusal(self.sdk.RateLimitError, 429, text="vendor-429")
        self.assertRegex(error.response.headers.get("retry-after", ""), r"^[1-9]\d*$")
        self.assert_spent(0)

    def test_refusal_of_the_vendor_is_returned_as_400(self):
        self.refusal(self.sdk.BadRequestError, 400, text="vendor-400")
        self.assert_spent(0)

    def test_error_of_the_vendor_is_5xx(self):
        client = self.client(self.key.secret, max_retries=0)
        with self.assertRaises(self.sdk.InternalServerError) as caught:
            self.ask(client, text="vendor-500")
        self.assertIn(caught.exception.status_code, (502, 503))
        self.assertTrue(self.message(caught.exception).endswith(f"({self.wire.number})"))
        self.assert_spent(0)

    def assert_cut(self, read):
        """`read(stream)` returns whether the cut stream looks complete. Checks the charge on its receipt."""
        text = "vendor-cut: " + "обрыв на полуслове " * 8
        try:
            whole = read(self.ask(self.asker, text=text, stream=True))
        except (self.sdk.APIError, OSError) as error:
            whole = False
            self.assertNotIsInstance(error, self.sdk.APITimeoutError)
        except Exception as error:  # the SDKs let errors of their HTTP library through while they read a stream
            whole = False
            self.assertRegex(type(error).__module__, r"^http(x|core)")
        self.assertFalse(whole, "a cut stream looks whole")
        receipt = self.key.receipt(self.wire.number)
        self.assertEqual(receipt["end"], "vendor_cut")
        self.assert_spent(Decimal(receipt["charged_rub"]))


def main(*suites):
    """Runs suites and prints the line that the runner adds up."""
    tests = unittest.TestSuite(map(unittest.defaultTestLoader.loadTestsFromTestCase, suites))
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(tests)
    failed = len({test.id() for test, _ in result.failures + result.errors})
    print(f"{result.testsRun - failed} passed, {failed} failed", flush=True)
    sys.exit(not result.wasSuccessful())
