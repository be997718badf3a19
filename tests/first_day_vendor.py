"""A fake vendor for some presets: the vendor's paths, login and a response that is not streamed.

The header of the key, GigaChat's token for half an hour and the form of a response are those of the vendors' documentation,
which docs/vendors.md#logins-at-vendors and docs/vendors/ name. The server also returns an exchange rate, like the first
source of deploy/tollgate.toml.
"""
import base64, json, time

from first_day_http import JsonHandler, serve

RATE = 90.5
TOKEN = "eyJ-token-of-half-an-hour"
CHAT = {"id": "c-1", "object": "chat.completion", "created": 1, "choices": [
    {"index": 0, "message": {"role": "assistant", "content": "Good day"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}}
MESSAGE = {"id": "m-1", "type": "message", "role": "assistant", "content": [{"type": "text", "text": "Good day"}],
           "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 1000, "output_tokens": 500}}
# For each preset: the path of the base URL, the path after it, the header of the key, the text before the key, and the
# response.
VENDORS = {
    "openai": ("/v1", "/chat/completions", "authorization", "Bearer ", CHAT),
    "anthropic": ("", "/v1/messages", "x-api-key", "", MESSAGE),
    "deepseek": ("", "/chat/completions", "authorization", "Bearer ", CHAT),
    "azure": ("/openai/v1", "/chat/completions", "api-key", "", CHAT),
    "gigachat": ("/api/v1", "/chat/completions", "authorization", "Bearer ", CHAT),
    "yandexgpt": ("/v1", "/chat/completions", "authorization", "Bearer ", CHAT),
}


class Vendor:
    """Serves calls with the right key, and records their models in `calls`."""

    def __init__(self, preset, key):
        base, path, header, prefix, answer = VENDORS[preset]
        self.calls, self.tokens = [], 0
        vendor, shown = self, TOKEN if preset == "gigachat" else key

        class Handler(JsonHandler):
            def do_GET(self):
                self.respond(200, {"data": [{"symbol": "USDT/RUB", "askPrice": RATE}]})

            def do_POST(self):
                body = self.body()
                if preset == "gigachat" and self.path == "/api/v2/oauth":
                    return self.token(body.decode())
                if self.path != base + path:
                    return self.respond(404, {"error": {"message": f"no {self.path} here"}})
                if self.headers[header] != prefix + shown:
                    return self.respond(401, {"error": {"message": "not our key"}})
                model = json.loads(body)["model"]
                vendor.calls.append(model)
                self.respond(200, {**answer, "model": model})

            def token(self, form):
                if self.headers["authorization"] != f"Basic {key}" or "scope=GIGACHAT_API_B2B" not in form or not self.headers["RqUID"]:
                    return self.respond(401, {"code": 4, "message": "Authorization error: header is incorrect"})
                vendor.tokens += 1
                self.respond(200, {"access_token": TOKEN, "expires_at": int((time.time() + 1800) * 1000)})

        self.host = serve(Handler)
        self.url, self.oauth = self.host + base, f"{self.host}/api/v2/oauth"


def key_of(preset):
    """A key in the vendor's form."""
    if preset == "gigachat":
        return base64.b64encode(b"client-id:client-secret").decode()
    return f"sk-{preset}-0123456789abcdef"
