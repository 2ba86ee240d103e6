#!/usr/bin/env python3
"""Writes tests/golden/harmony.txt: outputs of gpt-oss, rendered and read by the package openai-harmony.

    python3 make_harmony_goldens.py [OUTPUT]

Needs openai-harmony (`pip install openai-harmony`; the file is of version 0.0.8), which fetches its vocabulary, or reads
o200k_base.tiktoken in the folder that TIKTOKEN_ENCODINGS_BASE names. Each line is a JSON object: `output`, what a model
writes behind <|start|>assistant, the mark that ends it included; and what openai-harmony's parser finds in its tokens:
`reasoning` (a list), `content` (a list) and `calls` (of name and arguments). tests/server/harmony_golden_test.cc reads it.
"""

import json
import random
import sys
from pathlib import Path

from openai_harmony import Conversation, HarmonyEncodingName, Message, Role, load_harmony_encoding

CASES = 200
START = "<|start|>assistant"
TEXTS = [
    "Hm.", "The user asks for the weather. We call the function.", "Line one\nline two\n\n- a list", "Grüße, 世界 🌍", "a < b && c > d",
    "`<tool_call>` is no mark here", "<|not a mark|>", "{\"looks\": \"like JSON\"}", "x", " spaces around ", "to=functions.f",
    "<think>no mark either</think>",
]
ARGUMENTS = [
    {}, {"place": "Bern"}, {"place": "São Paulo", "days": 3}, {"nested": {"list": [1, 2.5, None, True], "text": "a \"quote\"\n"}},
    {"code": "if (a < b) { return \"}\"; }"},
]
# As the model writes them, too: the recipient behind the role, and other words for JSON.
HEADERS = [
    "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>", "<|channel|>commentary to=functions.{} json<|message|>",
    " to=functions.{}<|channel|>commentary <|constrain|>json<|message|>", "<|channel|>commentary to=functions.{}<|message|>",
    "<|channel|>analysis to=functions.{} <|constrain|>json<|message|>",
]


def random_output(encoding, rng):
    """What stands behind <|start|>assistant: thoughts, perhaps a preamble, then an answer or a call."""
    messages = []

    def say(channel, text):
        messages.append(Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel))

    for _ in range(rng.choice([0, 1, 1, 1, 2])):
        say("analysis", rng.choice(TEXTS))
    if rng.random() < 0.3:
        say("commentary", rng.choice(TEXTS))
    if rng.random() < 0.5:
        say("final", rng.choice(TEXTS) + "\n" + rng.choice(TEXTS))
        return rendered(encoding, messages)
    name, arguments = rng.choice(["f", "get_weather", "now", "a.b-c_d"]), json.dumps(rng.choice(ARGUMENTS), ensure_ascii=False)
    if rng.random() < 0.4:
        call = Message.from_role_and_content(Role.ASSISTANT, arguments)
        messages.append(call.with_channel("commentary").with_recipient(f"functions.{name}").with_content_type("<|constrain|>json"))
        return rendered(encoding, messages)
    before = rendered(encoding, messages) if messages else ""
    for mark in ("<|return|>", "<|call|>"):
        before = before.removesuffix(mark)
    if messages and not before.endswith("<|end|>"):
        before += "<|end|>"
    return before + (START if messages else "") + rng.choice(HEADERS).format(name) + arguments + "<|call|>"


def rendered(encoding, messages):
    text = encoding.decode_utf8(encoding.render_conversation_for_training(Conversation.from_messages(messages)))
    assert text.startswith(START), text
    return text.removeprefix(START)


def read(encoding, output):
    tokens = encoding.encode(output, allowed_special="all")
    found = {"output": output, "reasoning": [], "content": [], "calls": []}
    for message in encoding.parse_messages_from_completion_tokens(tokens, Role.ASSISTANT):
        text = "".join(part.text for part in message.content)
        if (message.recipient or "").startswith("functions."):
            found["calls"].append({"name": message.recipient.removeprefix("functions."), "arguments": text})
        elif message.channel == "analysis":
            found["reasoning"].append(text)
        else:
            found["content"].append(text)
    return found


def main():
    output = Path(sys.argv[1]) if len(sys.argv) == 2 else Path(__file__).resolve().parent / "harmony.txt"
    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    rng, cases = random.Random(7), {}
    while len(cases) < CASES:
        text = random_output(encoding, rng)
        cases[text] = read(encoding, text)
    output.write_text("".join(json.dumps(case, ensure_ascii=False) + "\n" for case in cases.values()), encoding="utf-8")


if __name__ == "__main__":
    main()
