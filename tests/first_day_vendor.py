"""A fake vendor for each preset with which a first day is played: its paths, its login and a plain answer, on a socket.

Assumed from the vendors' documentation, which docs/vendors.md#logins-at-vendors and docs/vendors/ name: where the key is sent, GigaChat's token
for half an hour, the shape of an answer. It also quotes a rate of USDT like the first source of deploy/tollgate.toml.
"""
import base64, http.server, json, threading, time

RATE = 90.5
TOKEN = "eyJ-token-of-half-an-hour"
CHAT = {"id": "c-1", "object": "chat.completion", "created": 1, "choices": [
    {"index": 0, "message": {"role": "assistant", "content": "Good day"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}}
MESSAGE = {"id": "m-1", "type": "message", "role": "assistant", "content": [{"type": "text", "text": "Good day"}],
           "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 1000, "output_tokens": 500}}
# Preset: path after the host, what the path of a call adds, the header of the key and the text before it, the answer.
VENDORS = {
    "openai": ("/v1", "/chat/completions", "authorization", "Bearer ", CHAT),
    "anthropic": ("", "/v1/messages", "x-api-key", "", MESSAGE),
    "deepseek": ("", "/chat/completions", "authorization", "Bearer ", CHAT),
    "azure": ("/openai/v1", "/chat/completions", "api-key", "", CHAT),
    "gigachat": ("/api/v1", "/chat/completions", "authorization", "Bearer ", CHAT),
    "yandexgpt": ("/v1", "/chat/completions", "authorization", "Bearer ", CHAT),
}


class Vendor:
    """Answers calls that come with the key; keeps the models that they asked for."""

    def __init__(self, preset, key):
        base, path, header, prefix, answer = VENDORS[preset]
        self.calls, self.tokens = [], 0
        vendor, shown = self, TOKEN if preset == "gigachat" else key

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.answer(200, {"data": [{"symbol": "USDT/RUB", "askPrice": RATE}]})

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                if preset == "gigachat" and self.path == "/api/v2/oauth":
                    return self.token(body.decode())
                if self.path != base + path:
                    return self.answer(404, {"error": {"message": f"no {self.path} here"}})
                if self.headers[header] != prefix + shown:
                    return self.answer(401, {"error": {"message": "not our key"}})
                model = json.loads(body)["model"]
                vendor.calls.append(model)
                self.answer(200, {**answer, "model": model})

            def token(self, form):
                if self.headers["authorization"] != f"Basic {key}" or "scope=GIGACHAT_API_B2B" not in form or not self.headers["RqUID"]:
                    return self.answer(401, {"code": 4, "message": "Authorization error: header is incorrect"})
                vendor.tokens += 1
                self.answer(200, {"access_token": TOKEN, "expires_at": int((time.time() + 1800) * 1000)})

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
        self.host = f"http://127.0.0.1:{self.server.server_port}"
        self.url, self.oauth = self.host + base, f"{self.host}/api/v2/oauth"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def key_of(preset):
    """A key in the vendor's form."""
    if preset == "gigachat":
        return base64.b64encode(b"client-id:client-secret").decode()
    return f"sk-{preset}-0123456789abcdef"
