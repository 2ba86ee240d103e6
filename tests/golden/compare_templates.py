#!/usr/bin/env python3
"""Compares what our engine makes of real chat templates with what Jinja2 makes of them, set up as in transformers.

    python3 compare_templates.py RENDER_TEMPLATES FOLDER [NAME…]

Needs the package `jinja2`. RENDER_TEMPLATES is the program of that name (tests/model); FOLDER has the templates (*.jinja).
Every template meets conversations with and without a system message, tools, calls of tools and their results, thoughts, and
contents in parts.
"""

import json
import subprocess
import sys
from pathlib import Path

from make_template_goldens import NOW, environment, outcome, strftime_now

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a place — now & \"later\" <soon>.",
    "parameters": {"type": "object", "required": ["place"], "properties": {
        "place": {"type": "string", "description": "City's name, e.g. Zürich"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "integer", "minimum": 1}, "exact": {"type": ["boolean", "null"]},
        "route": {"type": "array", "items": {"type": "string"}},
        "box": {"type": "object", "properties": {"north": {"type": "number", "description": "°"}}, "required": ["north"]}}}}}
TIME = {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}}}
SYSTEM = {"role": "system", "content": "You are terse. "}
USER = {"role": "user", "content": "What's the weather in Zürich? 世界"}
ANSWER = {"role": "assistant", "content": "Sunny.\n"}


def call(arguments, **more):
    return {"role": "assistant", "content": "", **more,
            "tool_calls": [{"type": "function", "id": "abcdefg12", "function": {"name": "get_weather", "arguments": arguments}}]}


RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefg12", "content": "{\"degrees\": 21.5}"}
ARGUMENTS = {"place": "Zürich", "days": 2, "exact": True, "unit": None, "box": {"north": 47.5}, "route": ["a", "b"]}
CONVERSATIONS = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "developer": [{"role": "developer", "content": "Be kind."}, USER],
    "turns": [USER, ANSWER, {"role": "user", "content": "  And tomorrow?\n"}],
    "system turns": [SYSTEM, USER, ANSWER, {"role": "user", "content": "And tomorrow?"}],
    "ends with assistant": [USER, ANSWER],
    "thought": [USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSunny."}, {"role": "user", "content": "And?"}],
    "reasoning": [USER, {"role": "assistant", "reasoning_content": "It is\nsummer.", "reasoning": "It is\nsummer.", "thinking": "hm",
                         "content": "Sunny."}, {"role": "user", "content": "And?"}],
    "call": [SYSTEM, USER, call(ARGUMENTS), RESULT],
    "call as text": [SYSTEM, USER, call(json.dumps(ARGUMENTS)), RESULT],
    "call without content": [USER, call(ARGUMENTS, content=None), RESULT],
    "call, answered": [USER, call(ARGUMENTS, content="Let me look."), RESULT, {"role": "assistant", "content": "21.5 degrees"},
                       {"role": "user", "content": "Thanks"}],
    "two calls": [USER, {"role": "assistant", "content": "Two.", "tool_calls": [
        {"type": "function", "id": "aaaaaaaa1", "function": {"name": "get_weather", "arguments": {"place": "Bern"}}},
        {"type": "function", "id": "aaaaaaaa2", "function": {"name": "now", "arguments": {}}}]},
        {**RESULT, "tool_call_id": "aaaaaaaa1"}, {"role": "tool", "name": "now", "tool_call_id": "aaaaaaaa2", "content": "12:00"}],
    "thoughtful call": [USER, call(ARGUMENTS, reasoning_content="I need a tool.", thinking="I need a tool."), RESULT],
    # gpt-oss refuses `thinking` here; the server leaves it out (src/server/chat_inputs.cc).
    "thoughtful call with content": [USER, call(ARGUMENTS, content="Let me look.", reasoning_content="I need a tool."), RESULT],
    "parts": [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
              {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "two"}]}],
    "parts of results": [USER, call(ARGUMENTS), {**RESULT, "content": [{"type": "text", "text": "fine"}]}],
    "dict results": [USER, call(ARGUMENTS), {**RESULT, "content": {"degrees": 21.5, "sky": "clear"}}],
    "nothing": [],
}
SETTINGS = [
    {}, {"tools": [WEATHER, TIME]}, {"add_generation_prompt": False}, {"variables": {"enable_thinking": True}},
    {"variables": {"enable_thinking": False}}, {"tools": [WEATHER], "variables": {"thinking": True, "reasoning_effort": "high"}},
    {"tools": [TIME], "variables": {"date_string": "1 Jan 2025", "builtin_tools": ["brave_search"], "tools_in_user_message": False,
                                       "functions": "[{}]", "datetime": "now"}},
]


def main():
    jinja = environment()
    jinja.globals["strftime_now"] = strftime_now
    paths = [p for p in sorted(Path(sys.argv[2]).glob("*.jinja")) if not sys.argv[3:] or p.stem in sys.argv[3:]]
    cases, expected = [], []
    for path in paths:
        source = path.read_text(encoding="utf-8")
        compiled = jinja.from_string(source)
        for name, messages in CONVERSATIONS.items():
            for number, setting in enumerate(SETTINGS):
                cases.append((path.stem, name, number, {"source": source, "messages": messages, "now": NOW, **setting}))
                expected.append(outcome(compiled, {
                    "messages": messages, "tools": setting.get("tools"), "documents": None, "bos_token": "<s>", "eos_token": "</s>",
                    "add_generation_prompt": setting.get("add_generation_prompt", True), **setting.get("variables", {})}))
    lines = "".join(json.dumps(case, ensure_ascii=False) + "\n" for *_, case in cases)
    done = subprocess.run([sys.argv[1]], input=lines.encode(), capture_output=True, check=True)
    shown, counts = {}, {"same": 0, "both refuse": 0, "more": 0}
    for (stem, name, number, _), golden, line in zip(cases, expected, done.stdout.decode().split("\n")):
        answer = json.loads(line)
        if "text" in golden and golden["text"] == answer.get("text"):
            counts["same"] += 1
        elif "error" in answer and ("fails" in golden or golden.get("raised") == answer["error"]):
            counts["both refuse"] += 1
        elif "generator is not JSON" in golden.get("fails", "") and "text" in answer:
            counts["more"] += 1
        else:
            shown.setdefault(stem, []).append((name, number, golden, answer))
    for stem, differences in shown.items():
        name, number, golden, answer = differences[0]
        print(f"{stem}: {len(differences)} differ, such as {name!r} with {SETTINGS[number]}")
        if "text" in golden and "text" in answer:
            a, b = golden["text"], answer["text"]
            at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            print(f"  expected …{a[max(0, at - 60) : at + 60]!r}\n  actual   …{b[max(0, at - 60) : at + 60]!r}")
        else:
            print(f"  expected {str(golden)[:300]}\n  actual   {str(answer)[:300]}")
    print(f"{len(paths)} templates, {len(cases)} renderings: {counts['same']} with the same text, {counts['both refuse']} that both "
          f"refuse, {counts['more']} that write a generator as JSON, which Jinja2 cannot, {sum(map(len, shown.values()))} that differ")
    sys.exit(1 if shown else 0)


if __name__ == "__main__":
    main()
