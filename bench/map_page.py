#!/usr/bin/env python3
"""What the page of the cache map costs the browser: a recorded map of hundreds of sequences is played in headless Chromium, and frames
drawn and the time of the page's main thread are counted.

    python3 bench/map_page.py --sequences 300 --seconds 6

It needs selenium, chromium and chromedriver (./dev test installs them).
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
# The grid clears its canvas once for each frame that it draws.
COUNT = """
window.drawn = 0;
const clear = CanvasRenderingContext2D.prototype.clearRect;
CanvasRenderingContext2D.prototype.clearRect = function (...box) { ++window.drawn; return clear.apply(this, box); };
"""
STATE = """return {drawn: window.drawn, frames: document.querySelector(".status").textContent, at: document.querySelector(".time").textContent,
  rows: document.querySelector(".strips-spacer").style.height};"""


def record(kvasir, path, sequences, groups):
    """A run in which that many sequences are in the system at once: they arrive within a second, and decode side by side."""
    subprocess.run([kvasir, "simulate", "--model", "llama-3-8b", "--device", "h100", "--workload", "random", "--random-input-len", "400",
                    "--random-output-len", "300", "--num-prompts", str(sequences), "--request-rate", str(sequences), "--max-num-seqs", str(sequences),
                    "--kv-layer-group", str(groups), "--scheduling-policy", "sarathi", "--record", path], check=True, stdout=subprocess.DEVNULL)


def measure(driver, seconds):
    def figures():
        metrics = {one["name"]: one["value"] for one in driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]}
        return {**driver.execute_script(STATE), "busy": metrics["TaskDuration"], "script": metrics["ScriptDuration"], "clock": time.monotonic()}

    before = figures()
    time.sleep(seconds)
    after = figures()
    passed = after["clock"] - before["clock"]
    drawn = after["drawn"] - before["drawn"]
    return {"drawn": drawn / passed, "busy": 1e3 * (after["busy"] - before["busy"]) / max(1, drawn),
            "script": 1e3 * (after["script"] - before["script"]) / max(1, drawn), "share": 100 * (after["busy"] - before["busy"]) / passed, "at": after["at"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvasir", default=str(ROOT / "build" / "release" / "kvasir"))
    parser.add_argument("--sequences", type=int, default=300)
    parser.add_argument("--groups", type=int, default=8, help="layers of a group: 32 layers are 4 groups of 8")
    parser.add_argument("--seconds", type=float, default=6, help="of the record that is played, which has nine (default: 6)")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests" / "e2e"))
    from browser import Browser

    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder, "run.jsonl"))
        record(options.kvasir, path, options.sequences, options.groups)
        view = subprocess.Popen([options.kvasir, "view", path], stdout=subprocess.PIPE, text=True)
        browser = Browser(width=1400, height=900)
        try:
            browser.cdp("Page.addScriptToEvaluateOnNewDocument", source=COUNT)
            browser.cdp("Performance.enable")
            browser.driver.get(view.stdout.readline().strip())
            browser.wait(lambda: "frames" in browser.one(".status").text, "the record is not read", 300)
            print(f"{options.sequences} sequences, {browser.one('.status').text}")
            print(f"{'grid':<12}{'drawn/s':>9}{'main thread, ms a frame':>26}{'of it scripts':>15}{'main thread busy':>18}")
            for mode in ("compact", "grid"):
                browser.run("const s = document.querySelector('[aria-label=\"Size of the grid\"]'); s.value = arguments[0]; s.dispatchEvent(new Event('change'))", mode)
                # From the same place, when all are there.
                slider = browser.one(".player input")
                browser.run("arguments[0].value = 2; arguments[0].dispatchEvent(new Event('input'))", slider)
                browser.named(".player button", "Play").click()
                time.sleep(1)
                found = measure(browser.driver, options.seconds)
                print(f"{mode:<12}{found['drawn']:>9.1f}{found['busy']:>26.1f}{found['script']:>15.1f}{found['share']:>16.0f} %   to {found['at']}")
                # At the end of the record it has stopped by itself.
                browser.run("[...document.querySelectorAll('.player button')].find((b) => /Pause/.test(b.textContent + b.ariaLabel + b.title))?.click()")
        finally:
            browser.close()
            view.terminate()
            view.wait(20)


if __name__ == "__main__":
    main()
