"""A fake YooKassa shop: payments of version 3 of the API, and notifications."""
import base64, json, urllib.request

from first_day_http import JsonHandler, serve

SHOP, SECRET = "100500", "test_secret_of_the_shop"


class Shop:
    """Payments by id. Each idempotency key creates one payment."""

    def __init__(self):
        self.payments, self.made = {}, {}
        shop = self

        class Handler(JsonHandler):
            def do_POST(self):
                self.respond(*shop.make(self.path, self.headers, json.loads(self.body())))

            def do_GET(self):
                self.respond(*shop.show(self.path, self.headers))

        self.url = serve(Handler) + "/v3"

    @staticmethod
    def known(headers):
        shown = base64.b64encode(f"{SHOP}:{SECRET}".encode()).decode()
        return headers["authorization"] == f"Basic {shown}"

    def make(self, path, headers, order):
        if not self.known(headers):
            return 401, {"type": "error", "code": "invalid_credentials"}
        if path != "/v3/payments":
            return 404, {"type": "error", "code": "not_found"}
        key = headers["idempotence-key"]
        number = self.made.setdefault(key, f"2d00{len(self.made):04}-000f-5000-8000-18db351245c7")
        link = f"https://yoomoney.example/checkout?orderId={number}"
        return 200, self.payments.setdefault(number, {
            "id": number, "status": "pending", "paid": False, "amount": order["amount"], "metadata": order["metadata"],
            "confirmation": {"type": "redirect", "confirmation_url": link}, "test": True})

    def show(self, path, headers):
        if not self.known(headers):
            return 401, {"type": "error", "code": "invalid_credentials"}
        path = path.partition("?")[0]
        if path == "/v3/refunds":
            return 200, {"type": "list", "items": []}
        payment = self.payments.get(path.removeprefix("/v3/payments/"))
        return (200, payment) if payment else (404, {"type": "error", "code": "not_found"})

    def pay(self, number):
        """The payer completes the payment with the link."""
        self.payments[number].update(status="succeeded", paid=True)

    def notify(self, gateway, number):
        """Notifies the gateway, and returns the status. The amount in the body is wrong: the gateway must not trust it."""
        body = {"type": "notification", "event": "payment.succeeded",
                "object": {"id": number, "status": "succeeded", "amount": {"value": "999999.00", "currency": "RUB"}}}
        req = urllib.request.Request(f"{gateway}/payments/yookassa", json.dumps(body).encode(),
                                     {"content-type": "application/json"})
        with urllib.request.urlopen(req, timeout=30) as res:
            return res.status
