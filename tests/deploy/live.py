"""The parts of deploy/ that run here: Redis as compose.yaml starts it, nginx in front of a gateway, the demo."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from ports import free_port

TOLLGATE = os.environ.get("TOLLGATE_BIN", "target/debug/tollgate")
PATIENCE = 15
ADMIN_KEY = "0123456789abcdef0123456789abcdef"


def until(condition, what):
    """Waits for a true value, and returns it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {PATIENCE} s: {what}")


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return response.status == 200
    except OSError:
        return False


class Process:
    """A process that is stopped at the end of the block. If the block fails, its output is shown."""

    def __init__(self, *command, ready, **options):
        self.log = tempfile.TemporaryFile("w+")
        self.name = Path(command[0]).name
        self.child = subprocess.Popen(command, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL, **options)
        self.ready = ready

    def output(self):
        self.log.seek(0)
        return self.log.read()

    def __enter__(self):
        try:
            until(lambda: self.child.poll() is not None or self.ready(self), f"{self.name} is ready")
            assert self.child.poll() is None, f"{self.name} ended:\n{self.output()}"
        except AssertionError:
            self.stop()
            print(self.output())
            raise
        return self

    def __exit__(self, kind, *_):
        self.stop()
        if kind:
            print(f"--- {self.name}\n{self.output()[-4000:]}")
        self.log.close()

    def stop(self):
        self.child.send_signal(signal.SIGTERM)
        try:
            self.child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


# --- the demo ---


class Demo(Process):
    def __init__(self):
        super().__init__(TOLLGATE, "demo", "--listen", "127.0.0.1:0", ready=Demo.printed)

    def printed(self):
        self.said = dict(re.findall(r"^(url|key|admin|admin-key): (.*)$", self.output(), re.M))
        return len(self.said) == 4

    def some_calls(self):
        """Makes a call that is answered, a call whose vendor fails, and a call that the gateway refuses."""
        for model, text in [("demo-chat", "hi"), ("demo-chat", "vendor-500"), ("no-such-model", "hi")]:
            body = {"model": model, "messages": [{"role": "user", "content": text}]}
            headers = {"authorization": "Bearer " + self.said["key"], "content-type": "application/json"}
            url = self.said["url"] + "/v1/chat/completions"
            with contextlib.suppress(urllib.error.HTTPError):
                urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).close()

    def scrape(self):
        with urllib.request.urlopen(self.said["admin"] + "/metrics", timeout=5) as response:
            return response.read().decode()


# --- a gateway ---


class Gateway(Process):
    """`tollgate serve` with a configuration whose listeners are moved to free ports."""

    def __init__(self, config, folder, **env):
        self.port, self.admin_port = free_port(), free_port()
        config = re.sub(r'^listen( *)= ".*:8080"', f'listen = "127.0.0.1:{self.port}"', config, flags=re.M)
        config = re.sub(r'^listen( *)= ".*:8081"', f'listen = "127.0.0.1:{self.admin_port}"', config, flags=re.M)
        file = Path(folder, f"tollgate-{self.port}.toml")
        file.write_text(config)
        env = {**os.environ, "TOLLGATE_ADMIN_KEY": ADMIN_KEY, **env}
        ready = lambda _: answers(f"http://127.0.0.1:{self.admin_port}/readyz")
        super().__init__(TOLLGATE, "serve", "--config", str(file), ready=ready, env=env, cwd=folder)

    def admin(self, path, body):
        headers = {"authorization": "Bearer " + ADMIN_KEY, "content-type": "application/json"}
        url = f"http://127.0.0.1:{self.admin_port}/admin/v1/{path}"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=5) as response:
            return json.loads(response.read())

    def key(self, **options):
        return self.admin("accounts/acme/keys", {"name": "test", **options})["key"]


# --- Redis ---


def redis():
    """Runs the container's Redis command with the redis.conf that it mounts, and a gateway with the container's
    tollgate.toml on it."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        port = free_port()
        service = yaml.safe_load(Path("deploy/compose.yaml").read_text())["services"]["redis"]
        mounted = dict(volume.split(":")[1::-1] for volume in service["volumes"])
        here = {path: str(Path("deploy", source)) for path, source in mounted.items()}
        here.update({"/data": folder})
        command = [here.get(word, word) for word in service["command"]] + ["--port", str(port)]
        env = {**os.environ, "TMPDIR": folder}
        listening = lambda server: "Ready to accept connections" in server.output()
        stack.enter_context(Process(*command, ready=listening, env=env))

        def cli(user, password, *words):
            ask = ["redis-cli", "-p", str(port), *(["--user", user] if user else []), *words]
            env = {**os.environ, **({"REDISCLI_AUTH": password} if password else {})}
            return subprocess.run(ask, env=env, capture_output=True, text=True, check=False).stdout.strip()

        # The image has no folder except the volume.
        assert not re.search("^dir ", Path(folder, "redis.conf").read_text(), re.M)
        passwords = {"tollgate": os.environ["TOLLGATE_REDIS_PASSWORD"], "operator": os.environ["REDIS_OPERATOR_PASSWORD"]}
        assert "NOAUTH" in cli(None, None, "ping"), "anybody may connect"
        assert cli("operator", passwords["operator"], "ping") == "PONG"
        for user, password in passwords.items():
            assert "NOPERM" in cli(user, password, "flushall"), f"{user} may empty it"
        assert "NOPERM" in cli("tollgate", passwords["tollgate"], "get", "another's"), "the gateway reads other keys"
        for setting, value in {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}.items():
            assert cli("operator", passwords["operator"], "config", "get", setting).split()[1] == value, setting

        config = Path("deploy/docker/tollgate.toml").read_text()
        config = config.replace("/var/lib/tollgate", folder)
        # No exchange rate is requested here.
        config = re.sub(r"\[\[rate\.source\]\].*?(?=\[tariff\])", '[[rate.source]]\nfixed = "90"\n\n', config, flags=re.S)
        url = f"redis://tollgate:{passwords['tollgate']}@127.0.0.1:{port}/0"
        gateway = stack.enter_context(Gateway(config, folder, TOLLGATE_LEDGER_URL=url))
        gateway.admin("accounts", {"id": "acme", "name": "Acme"})
        topped = gateway.admin("accounts/acme/topups", {"id": "payment-1", "amount_rub": "100"})
        assert topped["balance_rub"].startswith("100"), topped
        assert cli("operator", passwords["operator"], "scard", "tg:accounts") == "1"
        print("   the gateway serves on it")
    return []


# --- nginx ---

GATEWAY = """
listen = "127.0.0.1:8080"
base_url = "https://api.example.com/v1"
trusted_proxies = ["127.0.0.1"]
[admin]
listen = "127.0.0.1:8081"
key = "${TOLLGATE_ADMIN_KEY}"
[ledger]
url = "memory:"
[[rate.source]]
fixed = "90"
[[vendor]]
name = "scripted"
format = "chat"
url = "http://127.0.0.1:VENDOR/v1"
key = "${VENDOR_KEY}"
[[model]]
id = "m"
family = "M"
usdt_mtok = { input = "1", cached_input = "1", output = "1", cache_write = "1" }
output_tokens_max = 1000
routes = [ { vendor = "scripted" } ]
"""


class Vendor(ThreadingHTTPServer):
    """Sends an event, waits until the test has received it, and sends the next; or waits until the client has left."""

    daemon_threads = True

    def __init__(self):
        self.calls = 0
        self.first_is_there, self.client_left = threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", 0), VendorAnswer)


class VendorAnswer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        self.server.calls += 1
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        if not body.get("stream"):
            message = {"role": "assistant", "content": "hello"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
            text = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.event(content="first")
        if "leave" in body["messages"][0]["content"]:
            with contextlib.suppress(OSError):
                self.connection.settimeout(PATIENCE)
                if self.connection.recv(1) == b"":
                    self.server.client_left.set()
            self.close_connection = True
            return
        if not self.server.first_is_there.wait(PATIENCE):
            self.close_connection = True
            return
        self.event(content="second")
        self.event("stop")
        self.chunk({"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": usage})
        self.data("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, finish=None, **delta):
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        self.chunk({"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})

    def chunk(self, value):
        self.data(json.dumps(value))

    def data(self, text):
        text = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
        self.wfile.flush()


class Hangup(threading.Thread):
    """A gateway that accepts a call, and closes the connection without an answer."""

    def __init__(self):
        super().__init__(daemon=True)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port, self.calls = self.socket.getsockname()[1], 0

    def run(self):
        while True:
            connection, _ = self.socket.accept()
            with connection:
                while b"}" not in connection.recv(65536):
                    pass
                self.calls += 1


def site(folder, port, *gateways):
    """deploy/nginx.conf on another port, with other gateways, and with a certificate that exists."""
    text = Path("deploy/nginx.conf").read_text()

    def put(old, new):
        nonlocal text
        assert old in text, f"nginx.conf has no {old!r} any more"
        text = text.replace(old, new)

    put("listen 443 ssl http2;", f"listen 127.0.0.1:{port} ssl http2;")
    put("    server 127.0.0.1:8080;\n", "".join(f"    server 127.0.0.1:{gateway};\n" for gateway in gateways))
    put("upstream tollgate ", f"upstream tollgate{port} ")
    put("proxy_pass http://tollgate;", f"proxy_pass http://tollgate{port};")
    put("/etc/ssl/tollgate/", f"{folder}/")
    Path(folder, f"site-{port}.conf").write_text(text)


def call(port, key, text="hi", source="127.0.0.1", stream=False, **headers):
    context = ssl._create_unverified_context()
    client = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE, context=context, source_address=(source, 0))
    body = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": text}]}
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json", **headers}
    client.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    return client, client.getresponse()


def finished(port, key, **options):
    client, response = call(port, key, **options)
    body = response.read()
    client.close()
    return response.status, body, response.headers


def nginx():
    binary = shutil.which("nginx") or "/usr/sbin/nginx"
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        vendor = Vendor()
        threading.Thread(target=vendor.serve_forever, daemon=True).start()
        config = GATEWAY.replace("VENDOR", str(vendor.server_port), 1)
        gateway = stack.enter_context(Gateway(config, folder, VENDOR_KEY="sk-vendor"))
        hangups = [Hangup(), Hangup()]
        for hangup in hangups:
            hangup.start()

        make = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=api.example.com -keyout privkey.pem -out fullchain.pem"
        subprocess.run(["openssl", *make.split()], cwd=folder, check=True, capture_output=True)
        usual, upgrade, broken = free_port(), free_port(), free_port()
        site(folder, usual, gateway.port)
        site(folder, upgrade, free_port(), gateway.port)
        site(folder, broken, *(hangup.port for hangup in hangups))
        temporary = "".join(
            f"  {name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        main = Path(folder, "nginx.conf")
        # The gateway asks nginx not to buffer; here the site's own setting must disable it.
        main.write_text(
            f"daemon off;\npid {folder}/nginx.pid;\nerror_log stderr;\nevents {{}}\nhttp {{\n  access_log off;\n"
            f"  proxy_ignore_headers X-Accel-Buffering;\n{temporary}  include {folder}/site-*.conf;\n}}\n"
        )
        command = [binary, "-e", "stderr", "-c", str(main), "-p", folder]
        tested = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
        assert tested.returncode == 0, tested.stderr

        def listening(_):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", broken), 1).close()
                return True

        stack.enter_context(Process(*command, ready=listening))
        print("   nginx -t")

        gateway.admin("accounts", {"id": "acme", "name": "Acme"})
        gateway.admin("accounts/acme/topups", {"id": "payment-1", "amount_rub": "1000"})
        key = gateway.key()

        client, response = call(usual, key, stream=True)
        read = b""
        while b"first" not in read:
            more = response.read1()
            assert more, f"the stream ended early: {read}"
            read += more
        assert b"second" not in read
        vendor.first_is_there.set()
        rest = response.read()
        assert b"second" in rest and b"[DONE]" in rest, rest
        client.close()
        print("   a stream arrives event by event")

        client, response = call(usual, key, text="leave", stream=True)
        while b"first" not in response.read1():
            pass
        response.close()
        client.close()
        assert vendor.client_left.wait(PATIENCE), "the vendor's stream goes on without a client"
        print("   a client that leaves ends its call")

        fenced = gateway.key(addresses=["127.0.0.2/32"])
        assert finished(usual, fenced, source="127.0.0.2")[0] == 200
        status, body, _ = finished(usual, fenced, source="127.0.0.3")
        assert (status, json.loads(body)["error"]["code"]) == (403, "address_not_allowed")
        forged = {"x-forwarded-for": "127.0.0.2"}
        assert finished(usual, fenced, source="127.0.0.3", **forged)[0] == 403, "a forged address is believed"
        print("   callers' addresses arrive, and none that they make up")

        status, body, headers = finished(usual, "tg-nobody")
        assert status == 401 and headers["x-request-id"] in json.loads(body)["error"]["message"], body
        client = http.client.HTTPSConnection(
            "127.0.0.1", usual, timeout=PATIENCE, context=ssl._create_unverified_context()
        )
        client.putrequest("POST", "/v1/chat/completions")
        for name, value in {"authorization": f"Bearer {key}", "content-type": "application/json"}.items():
            client.putheader(name, value)
        client.putheader("content-length", str(33554432 + 1))
        client.endheaders()
        response = client.getresponse()
        assert response.status == 413 and b"request_too_large" in response.read()
        client.close()
        print("   refusals are the gateway's own, of bodies that are too large too")

        calls = vendor.calls
        for _ in range(4):
            assert finished(upgrade, key)[0] == 200, "a gateway that is gone costs a call"
        assert vendor.calls == calls + 4
        status, body, headers = finished(broken, key)
        assert (status, json.loads(body)["error"]["code"]) == (503, "overloaded"), body
        assert headers["retry-after"] == "2" and sum(hangup.calls for hangup in hangups) == 1, "a call was sent twice"
        print("   a gateway that is gone is passed by, and no call is sent twice")
    return []
