"""A fake YooKassa shop with the parts that a first day needs: version 3 of the payments API, and notifications, on a
real socket."""
import base64, http.server, json, threading, urllib.request

SHOP, SECRET = "100500", "test_secret_of_the_shop"


class Shop:
    """Payments by id. Each idempotency key creates one payment."""

    def __init__(self):
        self.payments, self.made = {}, {}
        shop = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                order = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self.answer(*shop.make(self.path, self.headers, order))

            def do_GET(self):
                self.answer(*shop.show(self.path, self.headers))

            def answer(self, status, body):
                body = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v3"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

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
        """Notifies the gateway, and returns its answer. The amount in the body is wrong, because the body is not trusted."""
        body = {"type": "notification", "event": "payment.succeeded",
                "object": {"id": number, "status": "succeeded", "amount": {"value": "999999.00", "currency": "RUB"}}}
        asked = urllib.request.Request(f"{gateway}/payments/yookassa", json.dumps(body).encode(),
                                       {"content-type": "application/json"})
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return answer.status
