"""The reports of `simulate`, `plan`, `bench` and of the reproduction in a real browser, on a wide page and on a phone."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

from browser import Browser, PageTest
from support import Server, run

PICTURES = os.environ.get("KVASIR_PICTURES")  # a folder: pictures of the pages go there, to look at
DRAW_PAGE = os.environ.get("KVASIR_DRAW_PAGE")
DEVICE = ("--model", "llama-2-7b", "--device", "l20", "--workload", "random", "--random-input-len", "200", "--random-output-len", "20")

# Of the charts' texts that are shown: how large the letters are, in pixels, and whether they lie within their chart.
TEXTS = """
  return [...document.querySelectorAll("svg")].filter((svg) => svg.checkVisibility() && svg.clientWidth > 0).flatMap((svg) => {
    const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    const box = svg.getBoundingClientRect();
    return [...svg.querySelectorAll("text")].filter((text) => text.textContent.trim() !== "").map((text) => {
      const own = text.getBoundingClientRect();
      return [text.textContent, parseFloat(getComputedStyle(text).fontSize) * scale, own.left >= box.left - 1 && own.right <= box.right + 1];
    });
  });"""


def figures(name, points, half):
    return {"name": name, "system": len(name) % 7, "marked": True, "x": [x for x, _ in points], "y": [y for _, y in points], "half": [half] * len(points)}


class Reports(PageTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.browser = Browser(width=1280, height=900)
        cls.addClassCleanup(cls.browser.close)

    def made(self, name, *arguments):
        path = self.folder / f"{name}.html"
        result = run(*arguments, "--html", str(path), timeout=400)
        self.assertEqual(result.returncode, 0, result.stderr)
        return path

    def check(self, path):
        charts = set()
        for width, height, phone, least in ((1280, 900, False, 10.5), (360, 780, True, 11)):
            with self.subTest(path.stem, width=width):
                self.browser.size(width, height, phone)
                self.browser.driver.get(path.as_uri())
                self.assertFalse(self.browser.scrolls_sideways())
                texts = self.browser.run(TEXTS)
                self.assertGreater(len(texts), 10, "no charts")
                self.assertEqual([(text, round(pixels, 1)) for text, pixels, _ in texts if pixels < least], [])
                self.assertEqual([text for text, _, inside in texts if not inside], [])
                charts.add(len([svg for svg in self.browser.all("svg") if svg.is_displayed()]))
                self.assertEqual(self.browser.accessibility(), [])
                self.assertEqual(self.browser.complaints(), [])
                if PICTURES:
                    self.browser.picture(os.path.join(PICTURES, f"report_{path.stem}_{width}.png"))
        self.assertEqual(len(charts), 1, "not the same charts on both")

    def test_simulate(self):
        self.check(self.made("simulate", "simulate", *DEVICE, "--scheduling-policy", "sarathi,vllm", "--request-rate", "0.5x:1.5x:0.5x",
                             "--num-prompts", "60", "--seeds", "2", "--slo", "ttft:1000", "tbt:300"))

    def test_plan(self):
        prices = self.folder / "prices.yaml"
        prices.write_text("l20: 0.8\nh100: 2.5\n", encoding="utf-8")
        self.check(self.made("plan", "plan", *DEVICE, "--scheduling-policy", "sarathi,vllm", "--slo", "ttft:1000", "tbt:300", "--effort", "0.1",
                             "--request-rate", "40", "--prices", str(prices)))

    def test_bench(self):
        with Server() as server:
            self.check(self.made("bench", "bench", "--base-url", server.url, "--workload", "random", "--random-input-len", "20",
                                 "--random-output-len", "5", "--num-prompts", "10", "--request-rate", "10,20"))

    @unittest.skipUnless(DRAW_PAGE, "KVASIR_DRAW_PAGE is not set")
    def test_reproduction(self):
        lines = {"title": "Attainment of both bounds by the rate of requests, OPT-13B on ShareGPT", "x": "requests/s", "y": "met", "unit": "%",
                 "lines": [figures(f"a policy of a long name {i}", [(0.5, 99), (1, 90 - i), (1.5, 40)], 3) for i in range(9)],
                 "bounds": [{"value": 90, "name": "asked"}]}
        rows = {"title": "Effective throughput", "x": "requests/s", "systems": ["here", "the paper"],
                "rows": [{"name": f"opt-{size}b on a data set of prompts", "points": [{"value": size, "half": 1, "system": 0},
                                                                                    {"value": size + 2, "system": 1, "hollow": True}]} for size in (13, 30, 66)]}
        page = {"title": "Reproduction", "blocks": [{"heading": "A figure"}, {"charts": [lines, rows]}]}
        path = self.folder / "reproduction.html"
        subprocess.run([DRAW_PAGE, str(path)], input=json.dumps(page), text=True, check=True)
        self.check(path)


if __name__ == "__main__":
    unittest.main()
