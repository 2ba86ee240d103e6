"""A real browser for the tests of pages: headless Chromium, and what a page must never do."""

import contextlib
import os
import shutil
import sys
import tempfile
import time
import unittest

from support import SKIPPED

try:
    from selenium import webdriver
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    print("skipped: no selenium in this Python; ./dev test makes an environment that has it")
    sys.exit(SKIPPED)

# Before the page's own scripts: what its policy has refused, and errors that no script has caught.
WATCH = """
window.refused = [];
window.faults = [];
document.addEventListener("securitypolicyviolation", (e) => refused.push(`${e.violatedDirective} ${e.blockedURI} ${e.sourceFile}`));
window.addEventListener("error", (e) => faults.push(String(e.message)));
window.addEventListener("unhandledrejection", (e) => faults.push(String(e.reason)));
window.alert = window.prompt = (text) => faults.push(`alert ${text}`);
"""


class Browser:
    """Chromium with a profile of its own. Sizes are those of the page's window."""

    def __init__(self, width=1200, height=800, dark=False, phone=False):
        programs = shutil.which("chromium"), shutil.which("chromedriver")
        if not all(programs):
            print("skipped: no chromium and chromedriver; ./dev test installs them")
            sys.exit(SKIPPED)
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        options = webdriver.ChromeOptions()
        options.binary_location = programs[0]
        for flag in ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run",
                     "--disable-background-networking", "--force-color-profile=srgb", f"--window-size={width},{height}",
                     f"--user-data-dir={self.profile.name}"]:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=programs[1]))
        self.cdp("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.size(width, height, phone)
        if phone:
            self.cdp("Emulation.setTouchEmulationEnabled", enabled=True)

    def cdp(self, command, **arguments):
        return self.driver.execute_cdp_cmd(command, arguments)

    def size(self, width, height, phone=False):
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def run(self, script, *arguments):
        """The value of a script: `return …`."""
        return self.driver.execute_script(script, *arguments)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector, seconds=20):
        return self.wait(lambda: next(iter(self.all(selector)), None), f"nothing is {selector}", seconds)

    def named(self, selector, name):
        """The shown element that is called so, by its text or label."""
        found = self.run("""return [...document.querySelectorAll(arguments[0])].find((e) => e.checkVisibility()
            && (e.innerText.trim() === arguments[1] || e.getAttribute("aria-label") === arguments[1]))""", selector, name)
        if found is None:
            raise AssertionError(f"no {selector} is called {name}")
        return found

    def texts(self, selector):
        """Of the elements that are shown."""
        return self.run("return [...document.querySelectorAll(arguments[0])].filter((e) => e.checkVisibility()).map((e) => e.innerText.trim())", selector)

    def wait(self, condition, words, seconds=30, pause=0.03):
        end = time.monotonic() + seconds
        while True:
            with contextlib.suppress(StaleElementReferenceException):  # it was made anew just then
                if value := condition():
                    return value
            if time.monotonic() > end:
                raise AssertionError(words() if callable(words) else words)
            time.sleep(pause)

    def press(self, *keys):
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def chord(self, *modifiers, key):
        actions = webdriver.ActionChains(self.driver)
        for modifier in modifiers:
            actions.key_down(modifier)
        actions.send_keys(key)
        for modifier in modifiers:
            actions.key_up(modifier)
        actions.perform()

    def focused(self):
        return self.driver.switch_to.active_element

    def picture(self, path):
        self.driver.save_screenshot(path)

    def complaints(self):
        """What a page must not have: errors in the console or of scripts, and what its policy has refused."""
        console = [line["message"] for line in self.driver.get_log("browser") if line["level"] in ("SEVERE", "WARNING")]
        return console + self.run("return [...refused, ...faults]")

    def foreign_loads(self, url):
        """What the page has loaded from elsewhere."""
        names = self.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        return [name for name in names if not name.startswith((url + "/", "data:", "blob:"))]

    def scrolls_sideways(self):
        return self.run("return document.scrollingElement.scrollWidth > document.scrollingElement.clientWidth"
                        " || [...document.querySelectorAll('body, main, .log')].some((e) => e.scrollWidth > e.clientWidth)")

    def accessibility(self):
        """The rules of axe (WCAG 2.2 AA and good practice) that the page breaks: a line each."""
        import axe_core_python
        with open(os.path.join(os.path.dirname(axe_core_python.__file__), "axe.min.js"), encoding="utf-8") as file:
            source = file.read()
        self.run(source + "\nwindow.axe = axe;" if "window.axe" not in source else source)
        result = self.driver.execute_async_script(
            "const done = arguments[0]; axe.run(document, {resultTypes: ['violations']}).then(done, (e) => done({error: String(e)}));")
        if "error" in result:
            raise AssertionError(result["error"])
        return [f"{broken['id']}: {node['target']} {node['failureSummary']}" for broken in result["violations"] for node in broken["nodes"]]

    def close(self):
        self.driver.quit()
        self.profile.cleanup()


class PageTest(unittest.TestCase):
    """Opens browsers that close after the test, and checks at its end that their pages did nothing wrong."""

    longMessage = True
    allowed = ()  # parts of complaints that this test provokes

    def browse(self, server, path="/", **options):
        browser = Browser(**options)
        self.addCleanup(browser.close)
        self.addCleanup(self.check_clean, browser, server)
        browser.driver.get(server.url + path)
        return browser

    def check_clean(self, browser, server):
        with contextlib.suppress(AttributeError):
            bad = [line for line in browser.complaints() if not any(part in line for part in self.allowed)]
            self.assertEqual(bad, [])
            self.assertEqual(browser.foreign_loads(server.url), [])


__all__ = ["Browser", "By", "Keys", "PageTest"]
