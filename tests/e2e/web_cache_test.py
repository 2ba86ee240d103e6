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
  return [...document.querySelectorAll(":is(.chart-head, .tier-head, .bounds)")].filter((head) => head.checkVisibility()).flatMap((head) =>
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
            self.assertRegex(first[0], r'"began":[1-9]\d*,')  # a server that is started again has another time
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


# In place of a server's stream the page reads what the test feeds it.
FEED = """
const ask = window.fetch;
window.fetch = (url, options) => {
  const { pathname } = new URL(url);
  if (pathname.endsWith("/cache/source")) return Promise.resolve(Response.json({ live: true, records: [] }));
  if (!pathname.endsWith("/cache/stream")) return ask(url, options);
  return Promise.resolve(new Response(new ReadableStream({ start(controller) {
    window.feed = (lines) => controller.enqueue(new TextEncoder().encode(lines.map((line) => `data: ${JSON.stringify(line)}\\n\\n`).join("")));
  } })));
};
"""
AT_DEVICE, AT_HOST, STAGED = 1, 2, 1 << 13  # a cell's states: a copy of K and V there; it is read through the stage ring


def sequence(number, at, tokens=48, state=2, cells=AT_DEVICE, **fields):
    """As a frame tells of one that is new; `at`: seconds."""
    return {"id": number, "s": state, "p": tokens, "k": tokens, "r": tokens, "m": 4096, "ct": 0, "pl": 0, "pe": 0, "lg": 0, "pr": 0, "rk": 1, "rn": 1,
            "at": int(at * 1e6), "fr": 0, "ft": 0, "slo": [0, 0, 0, 0], "pm": [0, 0, 0], "c": [[0, 4, [cells, -(-tokens // 16)]]], **fields}


class Feed:
    """An engine that the test makes up. Times are seconds since it began."""

    GAUGES = {"d": [1000, 0, 0, 0], "h": [2000, 0, 0, 0], "k": [0, 0, 0, 0], "bo": 0, "rc": 0, "le": 0, "tr": 0, "q": 0, "bps": 0, "mv": [[0] * 3] * 3,
              "ph": [0] * 6, "pt": 0, "pc": 0, "gt": 0, "pe": 0, "sw": 0, "re": 0, "fin": [0] * 4, "slo": [[0, 0]] * 5, "good": [0, 0]}

    def __init__(self, browser, began=1000):
        self.browser, self.began, self.frames, self.time = browser, began, 0, 0.0
        self.lines = [{"kvasir_map": 1, "source": "serve", "model": "m", "policy": "made-up", "began": int(began * 1e6), "block_tokens": 16, "layers": 4,
                       "layers_per_group": 1, "groups": 4, "cell_bytes": [10, 5], "cells": [100, 200, 0], "borrowable_cells": 0, "stage_blocks": 0}]

    def new(self, number, **fields):
        """A sequence that arrives with the next frame."""
        return sequence(number, self.began + self.time, **fields)

    def frame(self, seqs=(), after=0.1, gone=(), notes=(), unsaid=0, **gauges):
        self.time += after
        self.frames += 1
        first = self.frames == 1
        now = int((self.began + self.time) * 1e6)
        self.lines.append({"f": self.frames, "t": now, "step": self.frames, "seqs": list(seqs), "gone": list(gone), "unsaid": unsaid,
                           "notes": [[now, self.frames, seq, "note", words] for seq, words in notes],
                           "g": {**self.GAUGES, **gauges} if first else gauges, **({"whole": True, "moves": [], "claims": []} if first else {})})

    def send(self):
        """The page has it, and shows the last frame of it if it follows."""
        self.browser.wait(lambda: self.browser.run("return Boolean(window.feed)"), "the page asks for no stream")
        self.browser.run("feed(arguments[0])", self.lines)
        self.lines = []
        time.sleep(1.3 if self.browser.texts(".table-view") else 0.5)  # so often its text changes


class MadeUp(MapTest):
    """The page with an engine that is made up: what would take minutes, or a machine of its own, is here at once."""

    @contextlib.contextmanager
    def fed(self):
        with tempfile.TemporaryDirectory() as folder:
            record = pathlib.Path(folder, "any.jsonl")
            record.write_text('{"kvasir_map":1,"groups":1}\n{"f":1,"whole":true}\n', encoding="utf-8")
            script = self.browser.cdp("Page.addScriptToEvaluateOnNewDocument", source=FEED)["identifier"]
            try:
                with Viewer(str(record)) as viewer, self.page(viewer) as browser:
                    yield browser, Feed(browser)
            finally:
                self.browser.cdp("Page.removeScriptToEvaluateOnNewDocument", identifier=script)

    def step(self):
        return int(re.search(r"\d+", self.browser.run("return document.querySelector('.when').textContent")).group())

    def time(self):
        return float(self.browser.run("return document.querySelector('.player .time').textContent").split()[0])

    def slide(self, part):
        self.browser.run("const s = document.querySelector('.player input'); s.value = Number(s.min) + (s.max - s.min) * arguments[0]; "
                         "s.dispatchEvent(new Event('input'))", part)
        time.sleep(0.3)

    def life(self, number):
        """What the page tells of the life of a sequence that is in the table."""
        self.browser.wait(lambda: number in column(self.browser, "Sequence"), "it is not in the table")
        self.browser.named(".table-view button", str(number)).click()
        dialog = self.browser.one("dialog.life")
        out = dialog.text, len(self.browser.all(".life-chart"))
        self.browser.press(Keys.ESCAPE)
        self.browser.wait(lambda: not self.browser.all("dialog"), "the life does not close")
        return out

    def test_a_pause_holds_longer_than_the_map_remembers(self):
        with self.fed() as (browser, feed):
            feed.frame([feed.new(1)], notes=[(1, "the first decision")])
            for i in range(3499):
                feed.frame([{"id": 1, "k": 48 + i}])
            feed.send()
            self.assertEqual((self.step(), self.time()), (3500, 349.9))  # the first frame is at 0
            browser.named(".player button", "Pause").click()
            shown = lambda: browser.run("return [...document.querySelectorAll('.pane, .player .time')].map((e) => e.textContent)")
            held = shown()
            for i in range(7000):
                feed.frame([{"id": 1, "k": 4000 + i}])
            feed.frame([feed.new(2)], gone=[1])
            feed.send()
            self.assertEqual(shown(), held)
            # What was there at the pause can be looked at, back to where it began: 300 s, to the next 32nd frame.
            browser.named(".controls button", "Table").click()
            self.slide(0)
            self.assertTrue(46 < self.time() <= 50, self.time())
            self.assertEqual(self.step(), round(self.time() * 10) + 1)
            self.assertIn("at -0.100 s", self.life(1)[0])
            self.slide(1)
            self.assertEqual((self.step(), self.time()), (3500, 349.9))
            # A step forward goes to what has come since, of which the map has the last 300 s.
            browser.named(".player button", "One frame on").click()
            browser.wait(lambda: self.step() > 7000, "no frame on")
            self.assertLess(self.step(), 7600)
            browser.named(".player button", "Live").click()
            browser.wait(lambda: self.step() == 10501 and self.time() == 1050.0, lambda: f"{self.step()} {self.time()}")
            # Played behind the present, it goes on at the speed of the clock.
            self.slide(0.5)
            before, began = self.time(), time.monotonic()
            browser.named(".player button", "Play").click()
            browser.wait(lambda: self.time() > before + 1, "it does not play")
            self.assertLess(self.time() - before, 1.5 * (time.monotonic() - began) + 0.2)

    def test_a_map_of_much_forgets_before_its_time(self):
        with self.fed() as (browser, _):
            kept = browser.driver.execute_async_script("""
              const [head, done] = arguments;
              import("/assets/cache/history.js").then(({ History }) => {
                const history = new History(true);
                history.add(head, 0);
                for (let f = 1; f <= 2000; ++f) history.add({ f, whole: f === 1, t: f * 1e5, step: f, seqs: [], g: {} }, 1e5);
                done([history.size, history.frames.length, history.stateAt(history.begin).step]);
              }).catch((e) => done([String(e.stack)]))""", Feed(browser).lines[0])
            # 50,000,000 characters in 500 lines, and what there is before the next of the states of every 32nd.
            self.assertEqual(kept, [kept[1] * 1e5, kept[1], 2001 - kept[1]])
            self.assertTrue(500 <= kept[1] < 564, kept)

    def test_the_table_keeps_focus_and_selection(self):
        with self.fed() as (browser, feed):
            feed.frame([feed.new(i, state=2 if i < 4 else 0) for i in (1, 2, 3, 4)], notes=[(2, "decision")])
            feed.send()
            browser.named(".controls button", "Table").click()
            browser.wait(lambda: column(browser, "Sequence") == [1, 2, 3, 4], "no table")
            browser.run("""window.row = document.querySelectorAll('.table-view tbody tr')[1]; row.querySelector('button').focus();
                           getSelection().selectAllChildren(row.children[4]);""")
            focus = lambda: browser.run("return document.activeElement.closest('tr') === row")
            # Others begin to run, end and come; its own numbers change.
            feed.frame([{"id": 4, "s": 2}, {"id": 3, "s": 0}, {"id": 2, "k": 60}, feed.new(5)], gone=[1], notes=[(3, "another decision")])
            feed.send()
            self.assertEqual(column(browser, "Sequence"), [2, 3, 4, 5])
            self.assertEqual(column(browser, "Tokens known"), [60, 48, 48, 48])
            self.assertTrue(focus())
            self.assertEqual(browser.run("return getSelection().toString()"), "12")  # 4 layers of 3 blocks
            browser.press(Keys.ENTER)
            self.assertIn("Sequence 2", browser.one("dialog.life").text)
            browser.press(Keys.ESCAPE)
            browser.wait(lambda: not browser.all("dialog"), "the life does not close")
            # Nor does a decision lose it.
            browser.run("window.row = document.querySelector('.notes li:last-child'); row.querySelector('button').focus()")
            feed.frame(notes=[(5, "a third")])
            feed.send()
            self.assertEqual(browser.texts(".notes button"), ["a third", "another decision", "decision"])
            self.assertTrue(browser.run("return row.isConnected && row.contains(document.activeElement)"))
            # The focus of a row that goes is given to the next one.
            browser.run("document.querySelector('.table-view tbody button').focus()")
            feed.frame([{"id": 4, "k": 70}], gone=[2])
            feed.send()
            self.assertEqual(browser.focused().text, "3")
            # While it is paused nothing is touched, whatever comes in.
            browser.named(".player button", "Pause").click()
            time.sleep(1.3)
            browser.run("""window.touched = []; new MutationObserver((list) => touched.push(...list.map((m) => m.target.outerHTML || m.target.data)))
                           .observe(document.querySelector('.stage'), { subtree: true, childList: true, characterData: true, attributes: true })""")
            for _ in range(5):
                feed.frame([{"id": 3, "k": 71}, feed.new(9)], pt=100)
                feed.send()
            self.assertEqual(browser.run("return touched"), [])

    def test_lines_of_hundreds_of_sequences_show_second_copies_and_what_is_staged(self):
        with self.fed() as (browser, feed):
            pixels = lambda variable: browser.run(PIXELS, variable)
            change = lambda cells: [{"id": i, "c": [[0, 4, [cells, 3]]]} for i in range(1, 321)]
            feed.frame([feed.new(i) for i in range(1, 321)])
            feed.send()
            self.assertEqual(browser.run("return document.querySelector('.strips-spacer').style.height"), "5148px", "320 lines of 16 and the axis")
            self.assertGreater(pixels(DEVICE), 10000)
            self.assertEqual(pixels(HOST), 0)
            # A copy there, too: the lower four pixels of each line of ten.
            device = pixels(DEVICE)
            feed.frame(change(AT_DEVICE | AT_HOST))
            feed.send()
            self.assertAlmostEqual(pixels(HOST), 0.4 * device, delta=0.02 * device)
            self.assertAlmostEqual(pixels(DEVICE), 0.6 * device, delta=0.02 * device)
            # On the host and staged: a dark upper edge of two or three of ten.
            text = pixels("--text")
            feed.frame(change(AT_HOST | STAGED))
            feed.send()
            self.assertGreater(pixels("--text") - text, 0.15 * device)
            self.assertEqual(pixels(DEVICE), 0)
            self.picture("hundreds")

    def test_the_map_is_accessible_with_its_table_in_both_themes_and_on_a_phone(self):
        for dark, phone in ((False, False), (True, False), (False, True)):
            with self.subTest(dark=dark, phone=phone), self.fed() as (browser, feed):
                self.addCleanup(browser.size, 1400, 900)
                browser.run("document.documentElement.dataset.theme = arguments[0]", "dark" if dark else "light")
                if phone:
                    browser.size(390, 844, phone=True)
                feed.frame([feed.new(i) for i in (1, 2, 3)], notes=[(2, "preempted")], good=[2, 1], slo=[[2, 1]] * 5, fin=[2, 0, 0, 0])
                feed.send()
                for name in ("strips", "table"):
                    self.assertEqual(browser.accessibility(), [], name)
                    self.assertFalse(browser.scrolls_sideways(), name)
                    self.assertEqual(browser.run(CUT), [])
                    self.picture(f"{name}-{'dark' if dark else 'light'}{'-phone' if phone else ''}")
                    browser.named(".controls button", "Table").click()

    def test_a_short_life_is_whole_after_minutes(self):
        with self.fed() as (browser, feed):
            feed.frame()
            for _ in range(2500):
                feed.frame()
            at = feed.time
            feed.frame([feed.new(7, state=0)])
            feed.frame([{"id": 7, "s": 2, "fr": int((1000 + feed.time) * 1e6)}], notes=[(7, "admitted")])
            feed.frame([{"id": 7, "ft": int((1000.1 + feed.time) * 1e6), "c": [[0, 4, [AT_DEVICE, 4]]], "k": 49}])
            feed.frame([{"id": 7, "s": 0, "pe": 1, "c": [[0, 4, [AT_HOST, 4]]]}])
            for _ in range(10):
                feed.frame()
            feed.send()
            browser.named(".controls button", "Table").click()
            words, charts = self.life(7)
            self.assertEqual(charts, 1)
            self.assertRegex(words, rf"first token\n0\.300 s after it arrived[\s\S]*Its cells from {at:.2f} s to {at + 1.3:.2f} s")
            self.assertRegex(words, r"admitted[\s\S]*first token, 0\.300 s after it arrived[\s\S]*waits again")

    def test_a_server_that_begins_anew_is_another(self):
        with self.fed() as (browser, feed):
            feed.frame([feed.new(1)], notes=[(1, "of the first server")], gt=5000)
            for _ in range(20):
                feed.frame(after=1)
            feed.send()
            anew = Feed(browser, began=1030)
            anew.frame([anew.new(1, tokens=16)])
            anew.frame(notes=[(1, "of the second server")], gt=10)
            anew.frame(after=5)
            anew.send()
            self.assertEqual(self.time(), 35.1)  # 1000.1 was 0
            self.assertEqual(browser.run("return [...document.querySelectorAll('.notes li')].map((li) => li.lastChild.textContent)"),
                             ["of the second server", "the engine has begun anew: what was before is forgotten"])
            browser.named(".controls button", "Table").click()
            self.assertNotIn("of the first", self.life(1)[0])
            self.assertNotIn("-", browser.one(".charts").text)

    def test_gauges_say_what_was_lately_and_in_all(self):
        with self.fed() as (browser, feed):
            # In 100 s 40 of 100 requests met their bounds, in the next 100 s none came, and then in 60 s 30 of 30 did, one every 2 s.
            feed.frame()
            feed.frame(after=100, good=[100, 40], slo=[[100, 40], *[[0, 0]] * 4], fin=[100, 0, 0, 0])
            feed.frame(after=100)
            for i in range(1, 61):
                feed.frame(after=1, good=[100 + i // 2, 40 + i // 2], slo=[[100 + i // 2, 40 + i // 2], *[[0, 0]] * 4], fin=[100 + i // 2, 0, 0, 0],
                           d=[1000, 10 * i, 0, 0], h=[2000, 500, 0, 0], tr=3, q=5 * 2**20, bps=2**30, mv=[[0, 2**20 * i, 0], [2**21 * i, 0, 0], [0] * 3])
            feed.send()
            chart = lambda title: next(text for text in browser.texts(".chart") if text.startswith(title))
            self.assertIn("0.50 requests/s", chart("goodput"))
            self.assertIn("100 %", chart("met all bounds"))
            self.assertIn("60 %", chart("in use"))
            self.assertEqual(chart("in use").split()[-2:], ["device", "host"])  # there is no disk
            self.assertIn("3.0 MiB/s", chart("link"))
            self.assertIn("3 in flight, 5.0 MiB queued; at 1.00 GiB/s", chart("link"))
            self.assertEqual([" ".join(row.split()) for row in browser.texts(".bounds tr")], ["bounds met 2 min all", "TTFT 100 % 54 %", "all bounds 100 % 54 %"])
            # The fill of a minute ago was 0, now it is 60 %: the line of the device goes up, that of the host is level.
            lines = browser.run("return [...document.querySelectorAll('.chart path')].slice(0, 3).map((p) => p.getAttribute('d'))")
            heights = [[float(point.split()[1]) for point in line[1:].split("L") if point] for line in lines]
            self.assertAlmostEqual(heights[0][-1], 29 - 27 * 0.6, places=1)
            self.assertGreater(heights[0][2], 28)
            self.assertEqual({*heights[1][2:]}, {29 - 27 * 0.25})
            self.assertEqual(lines[2], "")
            # 20 s back: of all until then 40 + 20 of 120.
            self.slide(240 / 260)
            self.assertEqual([" ".join(row.split()) for row in browser.texts(".bounds tr")][1], "TTFT 100 % 50 %")

    def test_what_was_not_told_is_said(self):
        with self.fed() as (browser, feed):
            feed.frame([feed.new(1)], notes=[(1, "told")], unsaid=17)
            feed.send()
            self.assertIn("17 further decisions, which were too many to tell", browser.one(".notes").text)

    def test_keys_work_behind_a_click(self):
        with self.fed() as (browser, feed):
            for _ in range(20):
                feed.frame()
            feed.send()
            browser.named(".player button", "Pause").click()
            browser.press(Keys.ARROW_LEFT)
            browser.wait(lambda: self.step() == 19, "the arrow does nothing")
            browser.press(Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.ARROW_RIGHT)
            browser.wait(lambda: self.step() == 18, "the arrows do nothing")
            browser.press(Keys.END)
            browser.wait(lambda: self.step() == 20, "End does nothing")

    def test_hundreds_of_sequences_at_ten_frames_a_second(self):
        with self.fed() as (browser, feed):
            feed.frame([feed.new(i, tokens=1024, cells=AT_HOST if i % 3 == 0 else AT_DEVICE) for i in range(1, 501)])
            feed.send()
            drawn(browser, DEVICE, 1000, "nothing of the device is drawn")
            drawn(browser, HOST, 1000, "nothing of the host is drawn")
            browser.cdp("Performance.enable", timeDomain="threadTicks")
            spent = lambda: next(m["value"] for m in browser.cdp("Performance.getMetrics")["metrics"] if m["name"] == "TaskDuration")
            for table in (False, True):
                before, began = spent(), time.monotonic()
                for i in range(30):
                    feed.frame([{"id": n, "k": 1024 + i, "r": 1024 + i} for n in range(1, 501)])
                    browser.run("feed(arguments[0])", feed.lines)
                    feed.lines = []
                    time.sleep(0.1)
                browser.wait(lambda: self.step() == feed.frames, "it does not keep up")
                self.assertLess((spent() - before) / (time.monotonic() - began), 0.75, f"the page's thread has its hands full, table: {table}")
                browser.named(".controls button", "Table").click()
                browser.wait(lambda: table or len(column(browser, "Sequence")) == 500, "rows are missing")


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
                to_end = lambda: browser.run("for (const strips of document.querySelectorAll('.strips')) strips.scrollTop = strips.scrollHeight")
                browser.wait(lambda: (to_end(), browser.run(PIXELS, HOST) > 100)[1], "layerkv keeps nothing on the host", PATIENCE, pause=0.3)
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
