"""The price page and the page of client configurations in Chromium, on the screens of a phone and of a desktop: driven over WebDriver with Python's standard library.

TOLLGATE_URL names the gateway. Screenshots are stored next to its binary, in target/page."""

import base64
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from ports import free_port

URL = os.environ["TOLLGATE_URL"]
SHOTS = pathlib.Path(os.environ["TOLLGATE_BIN"]).parents[1] / "page"
START_SECONDS_MAX = 30
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]
# Width, height, whether it is a phone.
SCREENS = {"phone": (390, 844, True), "small-phone": (320, 640, True), "desk": (1280, 800, False)}
SCHEMES = ["light", "dark"]

# The elements that overflow to the right, and the width of the page.
OVERFLOW = """
const wide = document.documentElement.clientWidth;
const out = [...document.body.querySelectorAll('*')].filter((element) => {
  const box = element.getBoundingClientRect();
  const scrolled = element.closest('pre') && element.tagName !== 'PRE';
  return box.width > 1 && !scrolled && (box.right > wide + 0.5 || box.left < -0.5);
});
return [document.documentElement.scrollWidth, wide, out.map((element) => element.outerHTML.slice(0, 120))];
"""
# Each model: its name, whether it is completely visible, and its exact prices.
MODELS = """
return [...document.querySelectorAll('tr.model')].map((row) => {
  const name = row.querySelector('code');
  const box = name.getBoundingClientRect();
  const seen = name.checkVisibility({ opacityProperty: true, visibilityProperty: true })
    && box.width > 0 && box.height > 0 && box.left >= 0 && box.right <= innerWidth;
  return [name.textContent, seen, [...row.querySelectorAll('td')].map((cell) => cell.querySelector('data')?.value ?? null)];
});
"""
# The lowest contrast of any text, by the formula of WCAG 2, and the smallest font size.
LEGIBILITY = """
const luminance = (colour) => {
  const [red, green, blue] = colour.match(/[\\d.]+/g).map(Number).map((part) => {
    const share = part / 255;
    return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (!/, 0\\)$/.test(colour)) return colour;
  }
  return 'rgb(255, 255, 255)';
};
let [least, where, smallest] = [Infinity, '', Infinity];
for (const element of document.body.querySelectorAll('*')) {
  const says = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!says || !element.checkVisibility()) continue;
  const style = getComputedStyle(element);
  const pair = [luminance(style.color), luminance(behind(element))].sort((a, b) => b - a);
  const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
  if (contrast < least) [least, where] = [contrast, element.outerHTML.slice(0, 120)];
  smallest = Math.min(smallest, parseFloat(style.fontSize));
}
return [least, where, smallest, luminance(getComputedStyle(document.body).backgroundColor)];
"""


class Driver:
    """chromedriver, on a port of its own."""

    def __init__(self):
        port = free_port()
        self.base = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._ready():
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.stop()
                raise RuntimeError("chromedriver did not come up")
            time.sleep(0.05)

    def _ready(self):
        try:
            return self.send("GET", "/status")["ready"]
        except (urllib.error.URLError, ConnectionError):
            return False

    def send(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"content-type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.read().decode()}") from None

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Browser:
    """A new Chromium with a screen of this size."""

    def __init__(self, driver, screen):
        width, height, phone = SCREENS[screen]
        self.driver, self.profile = driver, tempfile.mkdtemp(prefix="page-test-")
        options = {
            "binary": shutil.which("chromium"),
            "args": [*FLAGS, f"--user-data-dir={self.profile}", f"--window-size={width},{height}"],
        }
        if phone:
            options["mobileEmulation"] = {
                "deviceMetrics": {"width": width, "height": height, "pixelRatio": 2, "mobile": True, "touch": True}
            }
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        made = driver.send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.path = f"/session/{made['sessionId']}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.driver.send("DELETE", self.path)
        shutil.rmtree(self.profile, ignore_errors=True)

    def open(self, scheme, path="/"):
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self._post("/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": media})
        self._post("/url", {"url": URL + path})

    def run(self, script):
        return self._post("/execute/sync", {"script": script, "args": []})

    def complaints(self):
        """Messages in the browser's console."""
        return [line["message"] for line in self._post("/se/log", {"type": "browser"})]

    def requests(self):
        """Every address that was requested over the network."""
        events = [json.loads(line["message"])["message"] for line in self._post("/se/log", {"type": "performance"})]
        sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        addresses = [event["request"]["url"] for event in sent]
        # Data inside the page is not requested; the browser's own pages do not count.
        return [address for address in addresses if not address.startswith(("data:", "chrome:", "chrome-untrusted:"))]

    def shoot(self, name):
        """A screenshot of the whole page."""
        params = {"captureBeyondViewport": True, "format": "png"}
        shot = self._post("/goog/cdp/execute", {"cmd": "Page.captureScreenshot", "params": params})
        SHOTS.mkdir(parents=True, exist_ok=True)
        (SHOTS / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))

    def _post(self, path, body):
        return self.driver.send("POST", self.path + path, body)


class PricePage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with urllib.request.urlopen(URL + "/v1/tollgate/models", timeout=10) as response:
            cls.catalog = json.load(response)
        cls.driver = Driver()
        cls.addClassCleanup(cls.driver.stop)

    def each_screen(self):
        for screen in SCREENS:
            for scheme in SCHEMES:
                print(f"{screen}, {scheme}", end=" ", flush=True)
                with Browser(self.driver, screen) as browser:
                    browser.open(scheme)
                    yield browser, screen, scheme

    def test_nothing_exceeds_the_screen(self):
        for browser, screen, scheme in self.each_screen():
            browser.shoot(f"{screen}-{scheme}")
            for state in ("as it opens", "with an example open"):
                scrolled, wide, out = browser.run(OVERFLOW)
                self.assertEqual(out, [], state)
                self.assertLessEqual(scrolled, wide, state)
                browser.run("document.querySelectorAll('details').forEach((it) => { it.name = ''; it.open = true; })")

    def test_every_model_is_visible_with_its_exact_prices(self):
        rates = ["input_rub_mtok", "cached_input_rub_mtok", "output_rub_mtok", "cache_write_rub_mtok"]
        expected = sorted([model["id"], True, [model[rate] for rate in rates]] for model in self.catalog["models"])
        self.assertGreater(len(expected), 0)
        for browser, _, _ in self.each_screen():
            self.assertEqual(sorted(browser.run(MODELS)), expected)

    def test_page_requests_nothing_from_other_servers_and_logs_no_error(self):
        for browser, _, _ in self.each_screen():
            self.assertEqual(browser.requests(), [URL + "/"])
            self.assertEqual(browser.complaints(), [])

    def test_page_is_legible_in_light_and_dark_mode(self):
        for browser, _, scheme in self.each_screen():
            contrast, where, smallest, paper = browser.run(LEGIBILITY)
            self.assertGreaterEqual(contrast, 4.5, where)
            self.assertGreaterEqual(smallest, 12)
            self.assertEqual(paper > 0.5, scheme == "light")

    def test_examples_can_be_opened_without_scripts(self):
        with Browser(self.driver, "phone") as browser:
            browser.open("light")
            self.assertEqual(browser.run("return document.scripts.length"), 0)
            shown = "return [...document.querySelectorAll('details')].filter((it) => it.open).length"
            self.assertEqual(browser.run(shown), 1)
            browser.run("[...document.querySelectorAll('summary')].at(-1).click()")
            self.assertEqual(browser.run(shown), 1, "one example at a time")
            text = browser.run("return document.querySelector('details[open] pre').innerText")
            root = re.sub("/v1$", "", self.catalog["base_url"])
            self.assertIn(f"ANTHROPIC_BASE_URL={root}", text)


class ConnectPage(unittest.TestCase):
    PATH = "/v1/tollgate/connect"

    @classmethod
    def setUpClass(cls):
        cls.driver = Driver()
        cls.addClassCleanup(cls.driver.stop)

    def test_every_client_file_fits_the_screen_is_legible_and_part_of_the_page(self):
        with urllib.request.urlopen(URL + self.PATH, timeout=10) as response:
            clients = [entry["client"] for entry in json.load(response)["clients"]]
        for screen in SCREENS:
            for scheme in SCHEMES:
                with self.subTest(screen=screen, scheme=scheme), Browser(self.driver, screen) as browser:
                    browser.open(scheme, self.PATH)
                    for opened in ("false", "true"):
                        browser.run(f"document.querySelectorAll('details').forEach((it) => {{ it.open = {opened}; }})")
                        scrolled, wide, out = browser.run(OVERFLOW)
                        self.assertEqual(out, [])
                        self.assertLessEqual(scrolled, wide)
                    browser.shoot(f"connect-{screen}-{scheme}")
                    contrast, where, smallest, paper = browser.run(LEGIBILITY)
                    self.assertGreaterEqual(contrast, 4.5, where)
                    self.assertGreaterEqual(smallest, 12)
                    self.assertEqual(paper > 0.5, scheme == "light")
                    links = "return [...document.querySelectorAll('section a')].map((it) => it.href)"
                    self.assertEqual(browser.run(links), [f"{URL}{self.PATH}/{client}" for client in clients])
                    self.assertEqual(browser.run("return document.querySelector('header a').href"), URL + "/")
                    self.assertEqual(browser.run("return document.scripts.length"), 0)
                    self.assertEqual(browser.requests(), [URL + self.PATH])
                    self.assertEqual(browser.complaints(), [])


if __name__ == "__main__":
    load = unittest.defaultTestLoader.loadTestsFromTestCase
    suite = unittest.TestSuite([load(PricePage), load(ConnectPage)])
    outcome = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
    failed = len({test.id() for test, _ in outcome.failures + outcome.errors})
    print(f"screenshots: {SHOTS}")
    print(f"{outcome.testsRun - failed} passed, {failed} failed", flush=True)
    sys.exit(not outcome.wasSuccessful())
