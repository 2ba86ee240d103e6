"""The chat page in a real browser, with the real model."""

import json
import os
import random
import re
import tempfile
import time
import unittest

from browser import Keys, PageTest
from support import Server, ToolServer

PICTURES = os.environ.get("KVASIR_PICTURES")  # a folder: pictures of the page go there, to look at

# Each is an answer of a hostile model. None may run, load or send anything, or reach beyond its message.
HOSTILE = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror=\"window.hacked = 1\">",
    "<svg onload='window.hacked=1'><a xlink:href='javascript:window.hacked=1'>x</a></svg>",
    "<iframe srcdoc=\"<script>parent.hacked=1</script>\"></iframe>",
    "<style>body{display:none}</style><link rel=stylesheet href=https://evil.example/x.css>",
    "<form action=https://evil.example><input name=key><button>Go</button></form>",
    "<meta http-equiv=refresh content='0;url=https://evil.example'><base href=https://evil.example/>",
    "<details open ontoggle=window.hacked=1><summary>x</summary></details>",
    "[click](javascript:window.hacked=1) [two](JaVaScRiPt:window.hacked=1) [three](java\nscript:alert(1))",
    "[a](data:text/html,<script>window.hacked=1</script>) [b](vbscript:x) [c](file:///etc/passwd) [d](blob:x)",
    "[rel](/admin/drain) [rel](//evil.example/x) [rel](?x) [rel](#x)",
    "<javascript:window.hacked=1> <https://ok.example/> javascript:window.hacked=1",
    "![pixel](https://evil.example/pixel.png) ![d](data:image/svg+xml;base64,PHN2Zy8+) ![j](javascript:window.hacked=1)",
    "[ref]: javascript:window.hacked=1\n[ref2]: https://evil.example \"onmouseover=window.hacked=1\"\n\n[ref] [x][ref2]",
    "[x](https://ok.example/\"onmouseover=\"window.hacked=1) [y](https://ok.example 'x\" onclick=\"window.hacked=1')",
    "```\"><img src=x onerror=window.hacked=1>\ncode\n```",
    "```html\n<script>window.hacked = 1</script><img src=x onerror=window.hacked=1>\n```",
    "```js onload=window.hacked=1\n`${window.hacked = 1}` </span></code></pre><script>window.hacked=1</script>\n```",
    "`<img src=x onerror=window.hacked=1>` and &lt;script&gt;window.hacked=1&lt;/script&gt; and \\<script>",
    "| <img src=x onerror=window.hacked=1> | b |\n|:-:|--:|\n| [x](javascript:window.hacked=1) | <b onclick=window.hacked=1>y</b> |",
    "\u202e\u0000\ufffe\u2028 mixed \u200b directions",
    "> " * 200 + "deep", "- " * 200 + "deep", "*" * 2000, "[" * 2000 + "x" + "](" * 2000, "a" * 30000, "`" * 3000 + "x",
]

# What is wrong in the elements below a node: [] if nothing is.
CHECK = """
  const tags = new Set("p ul ol li blockquote table thead tbody tr th td em strong s hr br a code pre span div h3 h4 h5 h6 button svg path".split(" "));
  const names = new Set("class href target rel start scope tabindex role aria-label title type".split(" "));
  const wrongIn = (root) => [...root.querySelectorAll("*")].flatMap((e) => e.closest("svg") && e.closest("button[aria-label='Copy the code']") ? [] : [
    ...(tags.has(e.localName) ? [] : [`<${e.localName}>`]),
    ...[...e.attributes].filter((a) => !names.has(a.name)).map((a) => `${e.localName} ${a.name}=${a.value}`),
    ...(e.localName === "a" && (!/^(https?|mailto):/.test(e.href) || e.rel !== "noopener noreferrer nofollow ugc" || e.target !== "_blank") ? [`link ${e.href}`] : []),
    ...(e.localName === "button" && e.getAttribute("aria-label") !== "Copy the code" ? ["a button"] : [])]);
"""

GOOD = """# A title

Some *emphasis*, **strong** ~~gone~~ text with `code` and a [link](https://example.org/x?y=1&z=2).
A second line.

1. one
2. two
   - nested
     with more

> quoted

| left | right |
|:-----|------:|
| a    |     1 |

```python
def reverse(items):  # comment
    return items[::-1] if items else "nothing < & >"
```

---

The [reference][r] ends it. https://example.org/bare

[r]: https://example.org/ref
"""

SETTINGS = {"temperature": 0, "max_tokens": 48}


def plant(browser, of, messages, settings=None):
    """Opens a conversation that has been kept before: pairs of role and content, or nodes."""
    nodes = [{"parent": None, "children": [1], "shown": 0}]
    for i, message in enumerate(messages):
        node = message if isinstance(message, dict) else {"role": message[0], "content": message[1]}
        if node["role"] == "assistant":
            node = {"reasoning": "", "calls": [], "state": "done", "model": "smol", **node}
        nodes.append({**node, "parent": i, "children": [i + 2] if i + 1 < len(messages) else [], "shown": 0})
    kept = {"id": "planted", "title": "Planted", "settings": settings or {}, "nodes": nodes}
    browser.run("localStorage.setItem('kvasir.chats', arguments[0]); localStorage.setItem('kvasir.chat.planted', arguments[1])",
                json.dumps([{"id": "planted", "title": "Planted", "used": 1}]), json.dumps(kept))
    browser.driver.get("about:blank")  # else the fragment alone would change
    browser.driver.get(of.url + "/#planted")
    browser.wait(lambda: len(browser.all(".message")) == len(messages), "the planted conversation is not shown")


def setUpModule():
    global server
    server = Server("--served-model-name", "smol")


def tearDownModule():
    server.stop()


class ChatTest(PageTest):
    def open(self, settings=None, **options):
        """A browser at the page, whose new conversations have these settings."""
        self.browser = browser = self.browse(server, **options)
        browser.run("localStorage.setItem('kvasir.chat-settings', arguments[0])", json.dumps(SETTINGS if settings is None else settings))
        self.reload()
        browser.wait(lambda: browser.one(".model").text == "smol", "the page does not find the model")
        return browser

    def reload(self):
        self.browser.driver.get("about:blank")  # else the fragment alone would change
        self.browser.driver.get(server.url + "/")

    def ask(self, text):
        self.browser.one("#message").send_keys(text, Keys.ENTER)

    def answers(self):
        return self.browser.texts(".message.assistant .markdown:not(.thinking *)")

    def wait_done(self, count=1, seconds=90):
        browser = self.browser
        browser.wait(lambda: len(browser.all(".message.assistant[aria-busy=false] .figures li")) > 0
                     and len(browser.all(".message.assistant[aria-busy=false]")) == count and not browser.all(".send.stop"),
                     lambda: f"{len(browser.all('.message.assistant'))} answers, not {count} whole ones: {browser.one('main').text[-500:]}", seconds)

    def answer_of_the_api(self, messages, **fields):
        body = {"model": "smol", "messages": messages, **SETTINGS, **fields}
        return json.loads(server.ask("POST", "/v1/chat/completions", body)[2])["choices"][0]["message"]["content"]

    def conversation(self):
        """What the browser keeps of the one that is open."""
        return json.loads(self.browser.run("return localStorage.getItem('kvasir.chat.' + location.hash.slice(1))"))

    def plant(self, messages):
        plant(self.browser, server, messages, SETTINGS)  # else the model goes on for minutes


class Chats(ChatTest):
    def test_an_answer_is_that_of_the_api_with_its_figures(self):
        browser = self.open()
        self.ask("What is a raven?")
        self.wait_done()
        expected = self.answer_of_the_api([{"role": "user", "content": "What is a raven?"}])
        self.assertEqual(self.conversation()["nodes"][2]["content"], expected)
        figures = browser.one(".figures").text
        self.assertRegex(figures, r"TTFT \d+\.\d+ s")
        self.assertRegex(figures, r"\d+\.\d tokens/s")
        self.assertRegex(figures, r"(?m)^48 tokens$")
        self.assertRegex(figures, r"prompt \d+")
        self.assertRegex(browser.one(".context-words").text, r"^\d+ of [\d,]+ tokens of context$")
        self.assertTrue(browser.one("[role=status]").get_attribute("textContent").startswith("Answer: "))
        # The second question knows the first.
        self.ask("Where does it live?")
        self.wait_done(2)
        expected = self.answer_of_the_api([{"role": "user", "content": "What is a raven?"}, {"role": "assistant", "content": expected},
                                           {"role": "user", "content": "Where does it live?"}])
        self.assertEqual(self.conversation()["nodes"][4]["content"], expected)

    def test_stop_ends_the_request_and_keeps_what_came(self):
        browser = self.open({"temperature": 0})
        self.ask("Write a long story about a raven, with many chapters.")
        browser.wait(lambda: len("".join(self.answers())) > 40, "no answer begins", 90)
        browser.one(".send.stop").click()
        browser.wait(lambda: not browser.all(".send.stop"), "it does not stop")
        server.wait_metric("num_requests_running", 0)
        self.assertEqual(browser.one(".note").text, "Stopped.")
        kept = self.conversation()["nodes"][2]
        self.assertEqual(kept["state"], "stopped")
        self.assertIn("≈", browser.one(".figures").text)
        # What came is a part of the whole answer, and the conversation goes on behind it.
        whole = self.answer_of_the_api([{"role": "user", "content": "Write a long story about a raven, with many chapters."}], max_tokens=len(kept["content"]))
        self.assertTrue(whole.startswith(kept["content"]) and kept["content"], kept["content"])
        self.assertLess(len(kept["content"]), len(whole))

    def test_escape_stops(self):
        browser = self.open({"temperature": 0})
        self.ask("Write a long story about a raven, with many chapters.")
        browser.wait(lambda: len("".join(self.answers())) > 20, "no answer begins", 90)
        browser.press(Keys.ESCAPE)
        browser.wait(lambda: not browser.all(".send.stop"), "Escape does not stop it")
        server.wait_metric("num_requests_running", 0)

    def test_regenerate_and_edit_make_branches(self):
        browser = self.open({"max_tokens": 12})
        self.ask("Tell me a word.")
        self.wait_done()
        first = self.conversation()["nodes"][2]["content"]
        browser.named(".icon-button", "Answer again").click()
        browser.wait(lambda: "2 / 2" in browser.one(".message.assistant .branches").text, "there is no second answer")
        self.wait_done()
        browser.named(".message.assistant .icon-button", "Previous version").click()
        browser.wait(lambda: "1 / 2" in browser.one(".message.assistant .branches").text, "the first answer does not come back")
        self.assertEqual(self.conversation()["nodes"][0]["children"], [1])
        self.assertEqual(self.conversation()["nodes"][1]["children"], [2, 3])
        self.assertEqual(" ".join(self.answers()[0].split()), " ".join(first.split()))
        # Another question beside the first, whose answers stay.
        browser.named(".icon-button", "Edit").click()
        field = browser.one(".edit textarea")
        self.assertEqual(field.get_attribute("value"), "Tell me a word.")
        field.clear()
        field.send_keys("Tell me a number.", Keys.ENTER)
        browser.wait(lambda: browser.one(".message.user .branches").text.split() == ["‹", "2", "/", "2", "›"], "the edit makes no branch")
        self.wait_done()
        self.assertEqual(browser.one(".message.user .plain").text, "Tell me a number.")
        nodes = self.conversation()["nodes"]
        self.assertEqual(nodes[0]["children"], [1, 4])
        self.assertEqual((nodes[4]["content"], nodes[4]["children"]), ("Tell me a number.", [5]))
        browser.named(".message.user .icon-button", "Previous version").click()
        browser.wait(lambda: browser.one(".message.user .plain").text == "Tell me a word.", "the first question does not come back")

    def test_a_reload_keeps_conversations(self):
        browser = self.open({"temperature": 0, "max_tokens": 8})
        self.ask("First question")
        self.wait_done()
        shown = browser.one(".log").text
        browser.driver.refresh()
        browser.wait(lambda: browser.all(".message.assistant") and browser.one(".log").text == shown, "the reload loses the conversation")
        browser.named("button", "New conversation").click()
        self.ask("Second question")
        self.wait_done()
        self.reload()
        titles = browser.texts(".conversation")
        self.assertEqual(titles, ["Second question", "First question"])
        browser.named(".conversation", "First question").click()
        browser.wait(lambda: browser.all(".log .message") and browser.one(".log").text == shown, "the first conversation is another now")
        browser.run("window.confirm = () => true")
        browser.named(".icon-button", "Delete “First question”").click()
        browser.wait(lambda: browser.texts(".conversation") == ["Second question"], "it is not deleted")
        self.assertEqual(browser.all(".message"), [])

    def test_what_is_deleted_while_it_is_answered_stays_deleted(self):
        browser = self.open({"temperature": 0})
        story = "Write a long story about a raven, with many chapters."
        for name in [f"Delete “{story}”", "Delete all conversations"]:
            with self.subTest(name):
                self.ask(story)
                browser.wait(lambda: len("".join(self.answers())) > 20, "no answer begins", 90)
                browser.run("window.confirm = () => true")
                self.assertTrue(browser.all(".send.stop"), "it has ended already")
                if name == "Delete all conversations":
                    browser.named(".icon-button", "Settings").click()
                    browser.named("dialog button", name).click()
                else:
                    browser.named(".icon-button", name).click()
                server.wait_metric("num_requests_running", 0)
                time.sleep(0.5)  # the aborted answer ends in the page
                self.assertEqual(browser.texts(".conversation"), [])
                self.assertEqual(browser.run("return Object.keys(localStorage).filter((key) => key.startsWith('kvasir.chat.'))"), [])

    def test_two_tabs_of_one_conversation_lose_nothing(self):
        browser = self.open({"temperature": 0, "max_tokens": 4})
        driver = browser.driver
        browser.cdp("Page.addScriptToEvaluateOnNewDocument", source="addEventListener('storage', (event) => window.asleep && event.stopImmediatePropagation())")
        self.reload()
        self.ask("Question zero")
        self.wait_done()
        first, address = driver.current_window_handle, driver.current_url
        driver.switch_to.new_window("tab")
        second = driver.current_window_handle
        driver.get(address)
        browser.wait(lambda: len(browser.all(".message")) == 2, "the second tab does not show the conversation")
        go_to = driver.switch_to.window
        users = lambda: browser.texts(".message.user .plain")
        kept = lambda: [node.get("content") for node in self.conversation()["nodes"] if node.get("role") == "user"]
        # What is said in one appears in the other, and goes on there.
        go_to(first)
        self.ask("Question one")
        self.wait_done(2)
        answer = self.answers()[1]
        go_to(second)
        browser.wait(lambda: users() == ["Question zero", "Question one"] and self.answers()[1:] == [answer], "the second tab lacks a question")
        self.ask("Question two")
        self.wait_done(3)
        self.assertEqual(kept(), ["Question zero", "Question one", "Question two"])
        # A tab that has slept through it all has lost nothing of the others when it keeps its own.
        go_to(first)
        browser.wait(lambda: len(users()) == 3, "the first tab lacks a question")
        browser.run("window.asleep = true")
        go_to(second)
        self.ask("Question three")
        self.wait_done(4)
        go_to(first)
        self.assertEqual(len(users()), 3)
        self.ask("Question four")
        self.wait_done(4)
        self.assertEqual(sorted(kept()), sorted(f"Question {n}" for n in ("zero", "one", "two", "three", "four")))
        self.assertEqual({node["state"] for node in self.conversation()["nodes"] if node.get("role") == "assistant"}, {"done"})
        # What is deleted in one is gone from the other, and one that did not hear of it does not bring it back.
        names = lambda: browser.run("return Object.keys(localStorage).filter((key) => key.startsWith('kvasir.chat.'))")
        go_to(second)
        browser.run("window.confirm = () => true")
        browser.named(".icon-button", "Delete “Question zero”").click()
        go_to(first)
        self.ask("Question five")
        self.wait_done(5)
        self.assertEqual(names(), [])
        browser.run("window.asleep = false")
        browser.named("button", "New conversation").click()
        self.ask("Other question")
        self.wait_done()
        address = driver.current_url
        go_to(second)
        driver.get("about:blank")
        driver.get(address)
        browser.wait(lambda: browser.texts(".message.user .plain") == ["Other question"], "it is not there")
        browser.run("window.confirm = () => true")
        browser.named(".icon-button", "Delete “Other question”").click()
        driver.close()
        go_to(first)
        browser.wait(lambda: not browser.all(".message") and not browser.texts(".conversation"), "the first tab still shows it")
        self.assertEqual(names(), [])

    def test_questions_and_answers_alternate(self):
        browser = self.open()
        messages = browser.driver.execute_async_script("""
            const done = arguments[0];
            import("/assets/chat/store.js").then(({ addNode, newConversation, requestMessages, shownPath }) => {
              const conversation = newConversation();
              let at = 0;
              for (const [role, content] of [["user", "one"], ["assistant", ""], ["user", "two"], ["assistant", "2"], ["user", "three"], ["user", "four"]]) {
                at = addNode(conversation, at, { role, content, calls: [] });
              }
              done(requestMessages(conversation, shownPath(conversation)).map(({ role, content }) => [role, content]));
            }).catch((e) => done(String(e.stack)))""")
        self.assertEqual(messages, [["user", "one\n\ntwo"], ["assistant", "2"], ["user", "three\n\nfour"]])

    def test_another_answer_stops_the_one_that_is_made(self):
        browser = self.open()
        plant(browser, server, [("user", "Say a word."), ("assistant", "Word.")], {"temperature": 0})
        self.ask("Write a long story about a raven, with many chapters.")
        browser.wait(lambda: len(self.answers()) == 2 and len(self.answers()[1]) > 20, "no answer begins", 90)
        # To open it again changes nothing, and loses nothing.
        before = len(self.answers()[1])
        browser.named(".conversation", "Planted").click()
        self.assertTrue(browser.all(".send.stop"), "it has stopped")
        self.assertGreaterEqual(len(self.answers()[1]), before)
        browser.named(".message.assistant .icon-button", "Answer again").click()
        browser.wait(lambda: self.conversation()["nodes"][4]["state"] == "stopped" and len(self.conversation()["nodes"]) == 6, "the other answer goes on")
        browser.wait(lambda: "2 / 2" in browser.one(".message.assistant .branches").text, "there is no second answer")
        browser.press(Keys.ESCAPE)  # it may have ended already
        browser.wait(lambda: not browser.all(".send.stop"), "it does not stop")
        server.wait_metric("num_requests_running", 0)

    def test_all_is_deleted_though_the_list_lacks_it(self):
        browser = self.open()
        browser.run("localStorage.setItem('kvasir.chat.lost', '{}'); window.confirm = () => true")
        browser.named(".icon-button", "Settings").click()
        browser.named("dialog button", "Delete all conversations").click()
        browser.wait(lambda: not browser.run("return Object.keys(localStorage).some((key) => key.startsWith('kvasir.chat.'))"), "it is still there")

    def test_settings_are_sent(self):
        browser = self.open({})
        browser.named(".icon-button", "Settings").click()
        browser.one("#set-system").send_keys("You are a pirate.")
        for name, value in [("temperature", "0"), ("max_tokens", "10"), ("seed", "7"), ("repetition_penalty", "1.2")]:
            browser.one(f"#set-{name}").send_keys(value)
        tools = browser.one("#set-tools")
        tools.send_keys("{")
        browser.named("dialog button", "Save").click()
        self.assertIn("Tools must be a JSON list", tools.get_property("validationMessage"))
        tools.clear()
        browser.named("dialog button", "Save").click()
        browser.wait(lambda: not browser.all("dialog"), "the dialog stays")
        self.ask("Who are you?")
        self.wait_done()
        messages = [{"role": "system", "content": "You are a pirate."}, {"role": "user", "content": "Who are you?"}]
        expected = self.answer_of_the_api(messages, max_tokens=10, seed=7, repetition_penalty=1.2)
        self.assertEqual(self.conversation()["nodes"][2]["content"], expected)

    def test_a_conversation_is_saved_as_a_file(self):
        browser = self.open()
        self.plant([("user", "One <b>"), ("assistant", "**Two**")])
        with tempfile.TemporaryDirectory() as folder:
            browser.cdp("Browser.setDownloadBehavior", behavior="allow", downloadPath=folder)
            browser.named(".icon-button", "Save this conversation as a file").click()
            file = os.path.join(folder, "Planted.md")
            browser.wait(lambda: os.path.exists(file) and os.path.getsize(file), "nothing is saved")
            with open(file, encoding="utf-8") as saved:
                self.assertEqual(saved.read(), "# Planted\n\n## You\n\nOne <b>\n\n## smol\n\n**Two**\n")

    def test_an_error_is_shown_and_can_be_tried_again(self):
        self.allowed = ("400 (Bad Request)",)
        browser = self.open({"temperature": 0, "max_tokens": 4, "top_p": 7})
        self.ask("Hi")
        browser.wait(lambda: browser.all(".note.error"), "there is no error")
        self.assertIn("top_p", browser.one(".note.error").text)
        browser.named(".icon-button", "Settings").click()
        browser.one("#set-top_p").clear()
        browser.named("dialog button", "Save").click()
        browser.wait(lambda: not browser.all("dialog"), "the dialog stays")
        browser.named("button", "Try again").click()
        self.wait_done()
        self.assertEqual(browser.texts(".note.error"), [])

    def test_keyboard_alone(self):
        browser = self.open({"temperature": 0, "max_tokens": 6})
        self.assertEqual(browser.focused().get_attribute("id"), "message")
        browser.press("One", Keys.ENTER)
        self.wait_done()
        browser.press("a")
        browser.chord(Keys.SHIFT, key=Keys.ENTER)
        browser.press("b")
        self.assertEqual(browser.one("#message").get_attribute("value"), "a\nb")
        browser.press(Keys.BACKSPACE * 3, Keys.ARROW_UP)
        self.assertEqual(browser.focused().get_attribute("aria-label"), "Edit the message")
        browser.press(Keys.ESCAPE)
        self.assertEqual(browser.focused().get_attribute("aria-label"), "Edit")
        browser.chord(Keys.ALT, Keys.SHIFT, key="r")
        browser.wait(lambda: browser.all(".message.assistant .branches"), "Alt+Shift+R does not answer again")
        self.wait_done()
        browser.chord(Keys.ALT, Keys.SHIFT, key="s")
        browser.one("dialog[open]")
        browser.press(Keys.ESCAPE)
        browser.wait(lambda: not browser.all("dialog"), "Escape does not close the dialog")
        browser.chord(Keys.ALT, Keys.SHIFT, key="k")
        browser.one("dialog[open]")
        browser.press(Keys.ENTER)
        browser.wait(lambda: not browser.all("dialog"), "Enter does not close the dialog")
        browser.chord(Keys.ALT, Keys.SHIFT, key="n")
        browser.wait(lambda: not browser.all(".message"), "Alt+Shift+N opens no conversation")
        # Everything is reached by Tab, shows that it has the focus, and nothing keeps it.
        seen = []
        for _ in range(40):
            browser.press(Keys.TAB)
            seen.append(browser.run("const e = document.activeElement; return e === document.body ? '' : e.getAttribute('aria-label') || e.textContent.trim()"))
            if seen[-1] == "Message" and len(seen) > 1:
                break
            if seen[-1]:
                outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
                self.assertNotEqual(outline, "none", seen[-1])
        for name in ["New conversation", "One", "Delete “One”", "Settings", "What is a raven?", "Message"]:
            self.assertIn(name, seen)


class Tools(PageTest):
    """A template with tools, and a model that was not trained on them: greedy, it copies what it was shown."""

    def test_thoughts_are_folded_and_calls_are_shown(self):
        tools = [{"type": "function", "function": {"name": "weather", "description": "The weather of a place",
                                                   "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}}}]
        call = {"id": "1", "name": "weather", "arguments": '{"place": "Bern"}'}
        history = []
        for _ in range(4):  # so often that the model copies it
            history += [("user", "What is the weather in Bern?"),
                        {"role": "assistant", "content": "", "reasoning": "I should look.", "calls": [call]},
                        {"role": "tool", "name": "weather", "call": "1", "content": "sunny"}]
        with ToolServer() as tool_server:
            browser = self.browse(tool_server)
            plant(browser, tool_server, history, {"temperature": 0, "max_tokens": 80, "tools": tools})
            self.assertEqual(len(browser.all(".call")), 4)
            self.assertEqual(browser.all(".call .field"), [])  # these calls have their results
            browser.wait(lambda: browser.one(".model").text == "smol", "the page does not find the model")
            browser.one("#message").send_keys("What is the weather in Bern?", Keys.ENTER)
            browser.wait(lambda: browser.all(".call .field"), lambda: browser.one("main").text[-800:], 90)
            answer = browser.all(".message.assistant")[-1]
            self.assertEqual(browser.run("return arguments[0].querySelector('.call-head').textContent", answer), "Calls weather")
            self.assertEqual(json.loads(browser.run("return arguments[0].querySelector('.call pre').textContent", answer)), {"place": "Bern"})
            thoughts = browser.run("return arguments[0].querySelector('.thinking')", answer)
            self.assertTrue(thoughts.is_displayed(), answer.text)
            self.assertFalse(thoughts.get_property("open"))
            self.assertRegex(thoughts.text, r"^Thought for [\d.]+ s$")
            self.assertTrue(thoughts.get_property("textContent").endswith(" sI should look."), thoughts.get_property("textContent"))
            for field in browser.all(".call textarea"):
                field.send_keys("rainy")
            browser.one(".calls .button.primary").click()
            browser.wait(lambda: len(browser.all(".message.assistant[aria-busy=false]")) == 6 and not browser.all(".send.stop"),
                         lambda: browser.one("main").text[-800:], 90)
            results = browser.texts(".message.tool .plain")
            self.assertEqual(results[-1], "rainy")
            self.assertEqual(browser.texts(".note.error"), [])


class Markdown(ChatTest):
    def test_hostile_markdown_does_nothing(self):
        browser = self.open()
        self.plant([("user", "<img src=x onerror=window.hacked=1>")]
                   + [pair for text in HOSTILE for pair in (("assistant", text), ("user", "go on"))])
        browser.wait(lambda: browser.run("return Boolean(window.hljs)"), "the highlighter is not loaded")
        self.assertIsNone(browser.run("return window.hacked ?? null"))
        self.assertEqual(browser.run(CHECK + "return [...document.querySelectorAll('.markdown')].flatMap(wrongIn)"), [])
        links = [link.get_attribute("href") for link in browser.all(".markdown a")]
        self.assertGreater(len(links), 3)
        self.assertEqual([link for link in links if link.startswith(server.url)], [])
        # What was refused is text.
        self.assertIn("<script>window.hacked = 1</script>", browser.one(".log").text)
        self.assertFalse(browser.scrolls_sideways())

    def test_mixtures_of_hostile_pieces_do_nothing(self):
        browser = self.open()
        draw = random.Random(7)
        pieces = [piece for text in HOSTILE if len(text) < 300 for piece in re.findall(r"\w+|\s+|[^\w\s]{1,3}", text)]
        texts = ["".join(draw.choice(pieces + ["\n\n", "](", "```", "|", "<", ">", "javascript:", "&#106;", "\t"]) for _ in range(60)) for _ in range(1500)]
        wrong = browser.driver.execute_async_script(CHECK + """
            const [texts, done] = arguments;
            (async () => {
              const { MarkdownView } = await import("/assets/chat/markdown.js");
              await import("/assets/lib/highlight.js");
              const place = document.body.appendChild(document.createElement("div"));
              const view = new MarkdownView(place);
              done(texts.flatMap((text) => { view.show(text, true); return wrongIn(place).map((what) => [text, what]); }));
            })().catch((e) => done([String(e.stack)]));""", texts)
        self.assertEqual(wrong, [])
        self.assertIsNone(browser.run("return window.hacked ?? null"))

    def test_good_markdown_is_shown(self):
        browser = self.open()
        self.plant([("user", "x"), ("assistant", GOOD)])
        browser.wait(lambda: browser.all(".hljs-keyword"), "the code has no colours")
        shape = browser.run("return [...document.querySelectorAll('.markdown > *')].map((e) => e.tagName)")
        self.assertEqual(shape, ["H3", "P", "OL", "BLOCKQUOTE", "DIV", "DIV", "HR", "P"])
        self.assertEqual(browser.one(".code pre").text, GOOD.split("```")[1].removeprefix("python\n").rstrip("\n"))
        self.assertEqual([e.get_attribute("href") for e in browser.all(".markdown a")],
                         ["https://example.org/x?y=1&z=2", "https://example.org/ref", "https://example.org/bare"])
        self.assertEqual(browser.one(".markdown td.align-right").text, "1")
        self.assertEqual(browser.texts(".markdown em, .markdown strong, .markdown s"), ["emphasis", "strong", "gone"])

    def test_what_grows_piece_by_piece_is_what_is_shown_at_once(self):
        browser = self.open()
        early = "See [docs][1].\n\nMore text.\n\n[1]: https://example.org/a/path"  # the use is whole before its target is
        for text in [GOOD, early, *[h for h in HOSTILE if len(h) < 500]]:
            grown, whole = browser.driver.execute_async_script("""
                const [text, done] = arguments;
                (async () => {
                  const { MarkdownView } = await import("/assets/chat/markdown.js");
                  await import("/assets/lib/highlight.js");
                  const make = () => new MarkdownView(document.createElement("div"));
                  const growing = make(), whole = make();
                  for (let end = 1; end < text.length; end += 7) growing.show(text.slice(0, end), true);
                  growing.show(text);
                  whole.show(text);
                  done([growing.element.outerHTML, whole.element.outerHTML]);
                })().catch((e) => done([String(e.stack), ""]));""", text)
            self.assertEqual(grown, whole, text)


class Looks(ChatTest):
    def picture(self, name):
        if PICTURES:
            self.browser.picture(os.path.join(PICTURES, f"{name}.png"))

    def test_themes_are_accessible_and_switch(self):
        for dark in (False, True):
            with self.subTest(dark=dark):
                browser = self.open(dark=dark)
                name = "dark" if dark else "light"
                self.picture(f"welcome-{name}")
                self.assertEqual(browser.accessibility(), [], "the empty page")
                browser.run("localStorage.setItem('kvasir.chat-settings', '{}')")
                self.plant([("user", "Show me all kinds of Markdown, please."),
                            {"role": "assistant", "content": GOOD, "reasoning": "The reader wants an example.",
                             "stats": {"ttft": 0.123, "tokens": 213, "counted": True, "rate": 87.6, "thought": 1.25, "prompt": 31, "cached": 16}},
                            ("user", "And the weather?"),
                            {"role": "assistant", "content": "", "calls": [{"id": "c", "name": "weather", "arguments": '{"place":"Bern"}'}]}])
                browser.wait(lambda: browser.all(".hljs-keyword"), "the code has no colours")
                self.picture(f"messages-{name}")
                browser.run("document.querySelector('.log').scrollTop = 0; document.querySelector('.thinking').open = true")
                self.picture(f"top-{name}")
                self.assertEqual(browser.accessibility(), [], "messages")
                browser.named(".icon-button", "Settings").click()
                self.picture(f"settings-{name}")
                self.assertEqual(browser.accessibility(), [], "settings")
                browser.press(Keys.ESCAPE)
                background = browser.run("return getComputedStyle(document.body).backgroundColor")
                browser.named(".icon-button", "Use the light theme" if dark else "Use the dark theme").click()
                other = browser.run("return getComputedStyle(document.body).backgroundColor")
                light = lambda colour: sum(map(int, re.findall(r"\d+", colour)[:3])) > 384  # noqa: E731
                self.assertEqual((light(background), light(other)), (not dark, dark))
                browser.driver.refresh()
                self.assertEqual(browser.run("return getComputedStyle(document.body).backgroundColor"), other)

    def test_a_phone(self):
        browser = self.open({"temperature": 0, "max_tokens": 40}, width=360, height=740, phone=True)
        self.assertFalse(browser.scrolls_sideways())
        self.picture("phone-welcome")
        self.plant([("user", "Show me all kinds of Markdown, please."), ("assistant", GOOD + "\n\n" + "wide " * 3 + "x" * 300 +
                    "\n\n```\n" + "long " * 60 + "\n```\n\n|" + "a much wider cell|" * 9 + "\n|" + "-|" * 9)])
        browser.wait(lambda: browser.all(".hljs-keyword"), "the code has no colours")
        self.assertFalse(browser.scrolls_sideways())
        self.picture("phone-messages")
        self.ask("Hello!")
        self.wait_done(2)
        self.assertFalse(browser.scrolls_sideways())
        # The list is before the page, and its button and Escape close it.
        self.assertFalse(browser.one("#sidebar").is_displayed())
        browser.named(".icon-button", "Show the list of conversations").click()
        self.assertTrue(browser.one("#sidebar").is_displayed())
        self.picture("phone-list")
        self.assertEqual(browser.accessibility(), [])
        browser.press(Keys.ESCAPE)
        self.assertFalse(browser.one("#sidebar").is_displayed())
        self.assertEqual(browser.focused().get_attribute("data-action"), "sidebar")
        browser.named(".icon-button", "Settings").click()
        self.assertFalse(browser.scrolls_sideways())
        self.picture("phone-settings")
        # Fingers need room.
        small = browser.run("""return [...document.querySelectorAll("button")].filter((b) => b.checkVisibility())
            .map((b) => [b.getAttribute("aria-label") || b.textContent, b.getBoundingClientRect()])
            .filter(([, box]) => box.width < 24 || box.height < 24).map(([name]) => name)""")
        self.assertEqual(small, [])


class Keys_(PageTest):
    def test_a_key_is_asked_for_and_kept_in_the_tab(self):
        self.allowed = ("401 (Unauthorized)",)
        with Server("--served-model-name", "smol", "--api-key", "right") as guarded:
            browser = self.browse(guarded)
            # A reader that gives the key only when a message needs it has the model then, too.
            browser.wait(lambda: browser.all("dialog[open]"), "no key is asked for")
            browser.named("dialog button", "Cancel").click()
            browser.wait(lambda: browser.one(".model").text == "no model", "the page has a model")
            browser.run("localStorage.setItem('kvasir.chat-settings', '{\"max_tokens\": 4}')")
            browser.named("button", "New conversation").click()
            browser.one("#message").send_keys("Hi", Keys.ENTER)
            browser.one("#key-input").send_keys("right", Keys.ENTER)
            browser.wait(lambda: browser.one(".model").text == "smol", "the model is not looked for again", 60)
            self.assertEqual(browser.texts(".banner"), [])
            browser.wait(lambda: browser.all(".message.assistant[aria-busy=false]"), "there is no answer", 60)
            browser.run("sessionStorage.clear(); localStorage.clear()")
            browser.driver.get("about:blank")
            browser.driver.get(guarded.url)
            browser.one("#key-input").send_keys("wrong", Keys.ENTER)
            browser.wait(lambda: any(e.text for e in browser.all("dialog .error")), "a wrong key is not refused")
            browser.one("#key-input").send_keys("right", Keys.ENTER)
            browser.wait(lambda: browser.one(".model").text == "smol", "the right key does not help")
            browser.driver.refresh()
            browser.wait(lambda: browser.one(".model").text == "smol", "the key is forgotten")
            self.assertEqual(browser.all("dialog"), [])
            self.assertNotIn("right", browser.run("return JSON.stringify(localStorage)"))
            browser.run("localStorage.setItem('kvasir.chat-settings', '{\"max_tokens\": 4}')")
            browser.driver.refresh()
            browser.wait(lambda: browser.one(".model").text == "smol", "the key is forgotten")
            browser.one("#message").send_keys("Hi", Keys.ENTER)
            browser.wait(lambda: browser.all(".message.assistant[aria-busy=false]"), "there is no answer", 60)
            self.assertEqual(browser.texts(".note.error"), [])


if __name__ == "__main__":
    unittest.main()
