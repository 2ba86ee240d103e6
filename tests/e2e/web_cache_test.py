"""The cache map in a real browser: of a server under memory pressure, and of recorded simulations."""

import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from browser import Browser, Keys, PageTest
from support import Server, binary, clean_environment, run

PICTURES = os.environ.get("KVASIR_PICTURES")  # a folder: pictures of the page go there, to look at
SECRET = "xylophone"
# Pixels of the grid that have the colour of a style's variable. They are read from a copy: Chromium warns of a canvas that is read often.
PIXELS = """
  const probe = document.body.appendChild(document.createElement("span"));
  probe.style.color = `var(${arguments[0]})`;
  const [r, g, b] = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
  probe.remove();
  let count = 0;
  for (const canvas of document.querySelectorAll(".strips canvas")) {
    if (canvas.width === 0 || canvas.height === 0) continue;
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
    for (let i = 0; i < data.length; i += 4) count += data[i] === r && data[i + 1] === g && data[i + 2] === b;
  }
  return count;
"""
# What the heads of tiers and of small charts say, where it does not fit.
CUT = """
  return [...document.querySelectorAll(":is(.chart-head, .tier-head, .bounds dl)")].filter((head) => head.checkVisibility()).flatMap((head) =>
    [head, ...head.children].filter((one) => one.scrollWidth > one.clientWidth && one.clientWidth > 0).map((one) => one.textContent));"""
DEVICE, HOST = "--data-1", "--data-2"
PATIENCE = 120  # seconds: a server on a busy machine shares the processors with the browser


class Load:
    """Requests that go on until they are stopped, more than the device tier holds."""

    def __init__(self, server, streams=5, tokens=220):
        self.server, self.tokens, self.stop, self.connections = server, tokens, False, {}
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(streams)]
        for thread in self.threads:
            thread.start()

    def run(self, number):
        turn = 0
        while not self.stop:
            turn += 1
            prompt = f"{number} {turn} The {SECRET} and the raven. " * 20
            body = json.dumps({"prompt": prompt, "max_tokens": self.tokens, "temperature": 0, "ignore_eos": True})
            with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(self.server.connection(600)) as connection:
                connection.connect()
                self.connections[number] = connection.sock
                connection.request("POST", "/v1/completions", body)
                connection.getresponse().read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop = True
        while any(thread.is_alive() for thread in self.threads):
            for sock in list(self.connections.values()):
                with contextlib.suppress(OSError):  # it is closed already
                    sock.shutdown(socket.SHUT_RDWR)
            time.sleep(0.02)


def small(policy):
    """A device tier of some 700 tokens, with a host tier behind it; one thread, so that the browser has a processor, too."""
    return Server("--threads", "1", "--scheduling-policy", policy, "--kv-offloading-size", "0.125", memory="20MiB")


def drawn(browser, variable, pixels, words):
    """Waits until so many pixels have the colour. To count them takes a while, which a busy machine should not do all the time."""
    browser.wait(lambda: browser.run(PIXELS, variable) > pixels, words, seconds=PATIENCE, pause=0.3)


def column(browser, name):
    """The numbers of a column of the table view."""
    return browser.run("""
      const table = document.querySelector(".table-view:not([hidden]) table");
      if (!table) return [];
      const at = [...table.querySelectorAll("thead th")].findIndex((th) => th.textContent === arguments[0]);
      return [...table.querySelectorAll("tbody tr")].map((tr) => Number(tr.children[at].textContent));""", name)


class MapTest(PageTest):
    """Has one browser for all tests: to start one takes longer than most of them."""

    @classmethod
    def setUpClass(cls):
        cls.browser = Browser(width=1400, height=900)
        cls.addClassCleanup(cls.browser.close)

    @contextlib.contextmanager
    def page(self, server):
        """The browser shows the page of the server, and leaves it before the server ends, which the console would tell."""
        self.browser.driver.get(server.url + "/cache")
        try:
            yield self.browser
            self.check_clean(self.browser, server)
        finally:
            self.browser.driver.get("about:blank")
            self.browser.complaints()  # of this test: they are not the next one's

    def picture(self, name):
        if PICTURES:
            self.browser.picture(os.path.join(PICTURES, f"cache_{name}.png"))


class LiveMap(MapTest):
    def test_under_pressure_with_three_policies(self):
        for policy in ("auto", "layerkv", "vllm-swap"):
            with self.subTest(policy), small(policy) as server, Load(server), self.page(server) as browser:
                drawn(browser, DEVICE, 1000, "nothing of the device is drawn")
                drawn(browser, HOST, 200, f"nothing of the host is drawn under {policy}")
                browser.wait(lambda: "/s" in browser.one(".flow .there").text, "nothing moves to the host", PATIENCE)
                browser.wait(lambda: len(browser.all(".notes li")) > 3, "the policy decides nothing", PATIENCE)
                self.picture(policy)
                browser.named(".controls button", "Table").click()
                browser.wait(lambda: sum(column(browser, "Device")) > 0 and sum(column(browser, "Host")) > 0, "the table lacks cells", PATIENCE)
                self.assertIn("sequences run", browser.one(".table-view caption").text)
                self.assertNotIn(SECRET, browser.run("return document.documentElement.outerHTML"))

    def test_pause_scrub_and_a_life(self):
        with small("auto") as server, Load(server), self.page(server) as browser:
            steps = lambda: int(re.search(r"\d+", browser.run("return document.querySelector('.when').textContent") or "0").group())
            at = lambda: float(browser.run("return document.querySelector('.player .time').textContent").split()[0])
            drawn(browser, DEVICE, 1000, "nothing is drawn")
            browser.wait(lambda: steps() > 20 and at() > 2, "it does not go on", PATIENCE)
            browser.named(".player button", "Pause").click()
            held, then = steps(), at()
            time.sleep(0.6)
            self.assertEqual((steps(), at()), (held, then))
            browser.named(".player button", "One frame back").click()
            browser.wait(lambda: at() < then, "no frame back", PATIENCE)
            browser.run("document.activeElement.blur()")
            browser.press(Keys.ARROW_RIGHT)
            browser.wait(lambda: (steps(), at()) == (held, then), "no frame on", PATIENCE)
            slider = browser.one(".player input")
            browser.run("arguments[0].value = arguments[0].min; arguments[0].dispatchEvent(new Event('input'))", slider)
            browser.wait(lambda: steps() < held - 5 and at() < then - 1, "the slider goes nowhere", PATIENCE)
            browser.named(".player button", "Live").click()
            browser.wait(lambda: steps() > held and at() > then, "it does not follow again", PATIENCE)
            browser.wait(lambda: browser.run("const b = document.querySelector('.notes button'); b?.click(); return !!b"), "no decision", PATIENCE)
            dialog = browser.one("dialog.life")
            self.assertRegex(dialog.text, r"Sequence \d+")
            self.assertIn("arrived", dialog.text)
            self.assertTrue(browser.all(".timeline li"))
            self.picture("life")
            browser.press(Keys.ESCAPE)
            browser.wait(lambda: not browser.all("dialog"), "the life does not close")
            self.assertEqual(browser.accessibility(), [])

    def test_keys(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = pathlib.Path(folder, "keys.yaml")
            digest = lambda key: hashlib.sha256(key.encode()).hexdigest()
            keys.write_text(f"keys:\n  - name: alice\n    sha256: {digest('of-alice')}\n"
                            f"  - name: olga\n    sha256: {digest('of-olga')}\n    claims: [cache_map]\n", encoding="utf-8")
            with Server("--api-keys", str(keys)) as server:
                self.assertEqual(server.ask("GET", "/cache/stream")[0], 401)
                status, _, body = server.ask("GET", "/cache/stream", headers={"Authorization": "Bearer of-alice"})
                self.assertEqual((status, json.loads(body)["error"]["code"]), (403, "claim_not_allowed"))
                self.allowed = ("401",)  # which the page asks the key for
                with self.page(server) as browser:
                    browser.one("#key-input").send_keys("of-olga", Keys.ENTER)
                    browser.wait(lambda: browser.one(".status").text == "live", "the key does not open it", PATIENCE)

    def test_what_the_stream_says_and_to_whom(self):
        with small("auto") as server, Load(server, streams=3):
            connection = server.connection(60)
            connection.request("GET", "/cache/stream")
            answer = connection.getresponse()
            self.assertEqual((answer.status, answer.getheader("Content-Type").split(";")[0]), (200, "text/event-stream"))
            text, frames, began = "", 0, time.monotonic()
            while frames < 20:
                line = answer.readline().decode()
                text += line
                frames += line.startswith("data: {\"f\":")
            self.assertGreater(time.monotonic() - began, 1.5, "more than ten frames a second")
            self.assertNotIn(SECRET, text)
            first = text.split("\n\n")
            self.assertTrue(first[0].startswith("data: {\"kvasir_map\":1,"))
            self.assertIn('"whole":true', first[1])
            connection.close()
            self.assertEqual(server.ask("GET", "/cache/stream", headers={"Host": "evil.example"})[0], 403)
            foreign = server.ask("HEAD", "/cache/stream", headers={"Origin": "https://evil.example"})[1]
            self.assertNotIn("access-control-allow-origin", foreign)
            self.assertEqual(server.ask("HEAD", "/cache/stream")[0], 200)
            self.assertEqual(server.ask("GET", "/cache/records/0")[0], 404)

    def test_it_does_not_hold_the_server_back_when_it_ends(self):
        with small("auto") as server:
            connection = server.connection(60)
            connection.request("GET", "/cache/stream")
            answer = connection.getresponse()
            answer.readline()
            began = time.monotonic()
            server.signal()
            self.assertIn(b"data:", answer.read())
            self.assertEqual(server.process.wait(20), 0)
            self.assertLess(time.monotonic() - began, 10)
            connection.close()

    def test_without_pages_there_is_no_map(self):
        with Server("--no-web") as server:
            for path in ("/cache", "/cache/stream", "/cache/source"):
                self.assertEqual(server.ask("GET", path)[0], 404, path)


class Viewer:
    """`kvasir view` of some files."""

    def __init__(self, *files):
        self.process = subprocess.Popen([binary(), "view", *files], stdout=subprocess.PIPE, text=True, env=clean_environment())
        self.url = self.process.stdout.readline().strip().removesuffix("/cache")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(20) == 0
        self.process.stdout.close()


class Records(MapTest):
    LOAD = ["--model", "opt-13b", "--device", "a100-40g", "--workload", "sharegpt", "--num-prompts", "60", "--request-rate", "1.3x",
            "--kv-offloading-size", "20", "--kv-layer-group", "5"]

    def record(self, folder, policies):
        path = os.path.join(folder, "run.jsonl")
        out = run("simulate", *self.LOAD, "--scheduling-policy", policies, "--record", path)
        self.assertEqual(out.returncode, 0, out.stderr)
        return out.stdout

    def test_two_policies_side_by_side(self):
        with tempfile.TemporaryDirectory() as folder:
            out = self.record(folder, "layerkv,vllm-swap")
            files = [os.path.join(folder, f"run-{policy}.jsonl") for policy in ("layerkv", "vllm-swap")]
            self.assertIn(f"kvasir view {files[0]} {files[1]}", out)
            with Viewer(*files) as viewer, self.page(viewer) as browser:
                titles = lambda: [h2.text for h2 in browser.all(".pane h2")]
                browser.wait(lambda: titles() == ["layerkv", "vllm-swap"], titles)
                browser.wait(lambda: re.fullmatch(r"\d+ frames and \d+ frames", browser.one(".status").text), "it is not read", PATIENCE)
                drawn(browser, DEVICE, 500, "nothing is drawn")
                at = lambda: float(browser.run("return document.querySelector('.player .time').textContent").split()[0])
                before = at()
                browser.wait(lambda: at() > before, "it does not play", PATIENCE)
                browser.run("const s = document.querySelector('.player input'); s.value = s.max * 0.47; s.dispatchEvent(new Event('input'))")
                # The latest sequences, below what fits the view, are those on the host.
                browser.wait(lambda: browser.run("""const all = [...document.querySelectorAll('.strips')];
                    for (const strips of all) strips.scrollTop = strips.scrollHeight;
                    return all.every((strips) => strips.scrollTop > 0)"""), "the grids do not scroll", PATIENCE)
                drawn(browser, HOST, 100, "layerkv keeps nothing on the host")
                self.picture("records")
                # Titles of charts and their values, whole at any width that has two panes.
                for width in (1001, 1391):
                    browser.size(width, 900)
                    self.assertEqual(browser.run(CUT), [], f"cut at a width of {width}")
                browser.run("const s = document.querySelector('.player input'); s.value = s.max; s.dispatchEvent(new Event('input'))")
                ended = lambda: browser.run("return [...document.querySelectorAll('.bounds strong')].map((strong) => strong.textContent)")
                browser.wait(lambda: ended() == ["60", "60"], lambda: f"not all requests have ended at the end: {ended()}")
                self.assertEqual(browser.accessibility(), [])

    def test_a_plan_log(self):
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "plans.jsonl")
            with Server("--log-plans", log) as server:
                server.ask("POST", "/v1/completions", {"prompt": "A raven is", "max_tokens": 40, "temperature": 0, "ignore_eos": True})
            self.assertIn("all the same", run("replay", log).stdout)
            with Viewer(log) as viewer, self.page(viewer) as browser:
                browser.wait(lambda: [h2.text for h2 in browser.all(".pane h2")] == ["auto"], "no map in the plan log")
                # A fast machine has ended the request before the first look at what is played.
                browser.run("const s = document.querySelector('.player input'); s.value = s.max * 0.5; s.dispatchEvent(new Event('input'))")
                drawn(browser, DEVICE, 50, "nothing is drawn")

    def test_files_that_are_none(self):
        with tempfile.TemporaryDirectory() as folder:
            other = pathlib.Path(folder, "other.txt")
            other.write_text("{}\n", encoding="utf-8")
            newer = pathlib.Path(folder, "newer.jsonl")
            newer.write_text('{"kvasir_map":99,"groups":1}\n', encoding="utf-8")
            for path, says in ((other, "there is no cache map in it"), (newer, "format 99"), (pathlib.Path(folder, "none"), "No such file")):
                out = run("view", str(path))
                self.assertEqual(out.returncode, 1)
                self.assertRegex(out.stderr, f"^kvasir view: .*{says}.*\n$")


if __name__ == "__main__":
    unittest.main()
