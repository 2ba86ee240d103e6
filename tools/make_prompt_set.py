#!/usr/bin/env python3
"""Writes a set of prompts whose answers differ in length, for `kvasir train-predictor` and `kvasir bench`.

    make_prompt_set.py --count 3200 prompts.jsonl

Each line is {"kind": ..., "messages": [...], "temperature": ...}: a question of one of the kinds below, about one of the
subjects below, in one of several wordings, asked by one user. The order is that of arrival. What is asked changes on the way:
each kind has a share at the first request and another one at the last, so that a predictor that learns from the past is tested
on another mixture. The same count and seed give the same bytes.
"""

import argparse
import json
import random

SUBJECTS = """the ocean|a lighthouse|photosynthesis|the French Revolution|bicycles|black holes|bread|chess|democracy|the Nile|volcanoes
|jazz|the immune system|glaciers|gravity|honey bees|the printing press|the Silk Road|steam engines|vaccines|whales|the moon|tea
|recursion|inflation|rainbows|cathedrals|migration of birds|electric cars|the Roman Empire|sleep|magnets|coral reefs|soap
|the stock market|libraries|earthquakes|penguins|the violin|origami|maps|the telephone|deserts|dolphins|windmills|pottery
|the alphabet|clocks|rice|sharks|the Olympic Games|bridges|mushrooms|comets|castles|coffee|the human heart|robots|forests
|the calendar|cheese|submarines|elephants|the piano|tides|paper|the compass|snow|spiders|trains|the theatre|salt|fireworks
|balloons|the Great Wall|owls|kites|potatoes|lightning|glass|wolves|museums|the eye|camels|sugar|ants|markets|rivers""".replace("\n", "").split("|")
CAPITALS = """France|Japan|Italy|Egypt|Canada|Norway|Kenya|Peru|Spain|India|Greece|Brazil|Poland|Turkey|Cuba|Chile|Iran|Nepal
|Austria|Portugal|Finland|Vietnam|Morocco|Hungary|Ireland|Sweden|Mexico|Ghana|Jordan|Iceland""".replace("\n", "").split("|")
WORDS = """large|happy|quick|old|cold|brave|early|strong|soft|bright|empty|loud|narrow|honest|gentle|heavy|simple|rare|calm|deep
|polite|sharp|sweet|thick|wild|young|rich|proud|quiet|dry""".replace("\n", "").split("|")
LANGUAGES = ["French", "Spanish", "German", "Italian", "Portuguese"]
SENTENCES = """The weather is nice today|I would like a cup of tea|Where is the railway station|My brother lives in a small village
|She reads a book every week|We will meet at the museum at noon|The children play in the garden|He has forgotten his keys again
|Could you close the window, please|They built this house a hundred years ago|The soup is too hot|I have never seen such a big dog
|The shop opens at nine o'clock|Our train was late this morning|Please write down your name""".replace("\n", "").split("|")
HEROES = ["a young fisherman", "a tired detective", "a clever fox", "an old clockmaker", "two sisters", "a lonely robot",
          "a cook at sea", "a girl who can fly", "a forgetful wizard", "a stray cat", "a mountain guide", "a court painter"]
FUNCTIONS = ["reverses a string", "checks whether a number is prime", "counts the words of a text", "sorts a list of numbers",
             "finds the largest element of a list", "removes duplicates from a list", "computes a factorial",
             "merges two sorted lists", "checks whether a word is a palindrome", "converts Celsius to Fahrenheit",
             "sums the digits of a number", "reads a file line by line"]


def sums(r):
    a, b = r.randint(2, 99), r.randint(2, 99)
    return r.choice([f"What is {a} + {b}? Answer with the number only.", f"Compute {a} * {b}. Only the result, please.",
                     f"How much is {a + b} - {a}? Give just the number."])


def of(*wordings, **lists):
    """A kind that takes a wording and an element of each list."""
    def ask(r):
        return r.choice(wordings).format(**{name: r.choice(values) for name, values in lists.items()}, n=r.randint(3, 10))
    return ask


# A kind, its shares at the first and at the last request, and the function that asks.
KINDS = [
    ("sum", 10, 6, sums),
    ("capital", 8, 5, of("What is the capital of {c}?", "Name the capital of {c}. One word.", "Which city is the capital of {c}?",
                         c=CAPITALS)),
    ("yes-no", 8, 6, of("Is it true that {s} existed a thousand years ago? Answer yes or no.",
                        "Are there people who study {s}? Reply with yes or no only.", s=SUBJECTS)),
    ("synonym", 8, 5, of("Give me a synonym of the word '{w}'.", "What is the opposite of '{w}'? One word.",
                         "Use the word '{w}' in a sentence.", w=WORDS)),
    ("translate", 10, 8, of("Translate into {l}: {t}.", "How do you say '{t}' in {l}?", l=LANGUAGES, t=SENTENCES)),
    ("define", 12, 10, of("Define {s} in one sentence.", "In one sentence, what is {s}?", "Describe {s} in a few words.", s=SUBJECTS)),
    ("list", 12, 14, of("List {n} facts about {s}.", "Give me {n} tips about {s}, as a numbered list.",
                        "Name {n} things that have to do with {s}.", s=SUBJECTS)),
    ("explain", 12, 16, of("Explain {s} to a child.", "How does one learn about {s}?", "Why is {s} important?",
                           "Tell me about {s}.", s=SUBJECTS)),
    ("story", 8, 12, of("Write a short story about {h} and {s}.", "Tell me a tale in which {h} finds {s}.", h=HEROES, s=SUBJECTS)),
    ("poem", 6, 8, of("Write a haiku about {s}.", "Write a poem about {s}.", "Write four lines that rhyme about {s}.", s=SUBJECTS)),
    ("code", 6, 10, of("Write a Python function that {f}.", "Show me how to write a function that {f} in Python, with an explanation.",
                       f=FUNCTIONS)),
]


def prompts(count, seed):
    r = random.Random(seed)
    for i in range(count):
        way = i / max(1, count - 1)
        shares = [first + (last - first) * way for _, first, last, _ in KINDS]
        kind, _, _, ask = r.choices(KINDS, shares)[0]
        yield {"kind": kind, "messages": [{"role": "user", "content": ask(r)}], "temperature": r.choice([0.3, 0.7])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", help="the file, JSON lines")
    parser.add_argument("--count", type=int, default=3200, help="requests (3200)")
    parser.add_argument("--seed", type=int, default=1)
    o = parser.parse_args()
    with open(o.output, "w") as out:
        for prompt in prompts(o.count, o.seed):
            out.write(json.dumps(prompt) + "\n")


if __name__ == "__main__":
    main()
