#!/usr/bin/env python3
"""Multiple-choice questions for lm-eval, and how far two runs of them agree.

    tools/choices.py make FOLDER        writes choices.jsonl and the task `choices` (choices.yaml), for lm_eval --include_path FOLDER
    tools/choices.py compare A B        two results of lm_eval --log_samples: samples_choices_….jsonl

The questions are made of small tables of common knowledge, written for this purpose; the same at each call. `compare` prints a table in
Markdown: how often both runs choose the same answer, how often the right one, and how far their log-likelihoods are apart, in nats.
"""

import argparse
import json
import pathlib
import random
import statistics
import sys

# Question with a gap, and what fills it: pairs of words.
TABLES = [
    ("The capital of {} is", "France:Paris Italy:Rome Spain:Madrid Germany:Berlin Greece:Athens Egypt:Cairo Japan:Tokyo China:Beijing "
     "Russia:Moscow England:London Ireland:Dublin Austria:Vienna Poland:Warsaw Norway:Oslo Portugal:Lisbon Cuba:Havana"),
    ("The opposite of {} is", "hot:cold up:down big:small old:young wet:dry light:dark fast:slow open:closed rich:poor hard:soft "
     "early:late full:empty high:low near:far strong:weak happy:sad"),
    ("The plural of {} is", "child:children mouse:mice foot:feet tooth:teeth man:men woman:women goose:geese ox:oxen leaf:leaves "
     "knife:knives city:cities box:boxes wolf:wolves baby:babies person:people life:lives"),
    ("A young {} is called a", "dog:puppy cat:kitten cow:calf sheep:lamb horse:foal lion:cub goat:kid duck:duckling goose:gosling "
     "pig:piglet frog:tadpole hen:chick swan:cygnet deer:fawn owl:owlet kangaroo:joey"),
    ("The past tense of {} is", "go:went see:saw take:took give:gave run:ran eat:ate write:wrote speak:spoke think:thought "
     "bring:brought buy:bought know:knew begin:began fly:flew sing:sang stand:stood"),
    ("The usual colour of {} is", "grass:green snow:white coal:black blood:red gold:yellow chocolate:brown milk:white emeralds:green "
     "sapphires:blue rubies:red carrots:orange ash:grey lemons:yellow leaves:green tar:black aubergines:purple"),
    ("A {} is a kind of", "raven:bird salmon:fish oak:tree rose:flower bee:insect violin:instrument hammer:tool carrot:vegetable "
     "apple:fruit copper:metal wolf:mammal cobra:snake chair:furniture shirt:clothing sloop:ship football:ball"),
    ("A place where people go to {} is a", "swim:pool learn:school pray:church read:library eat:restaurant sleep:hotel fly:airport "
     "shop:market heal:hospital dance:club act:theatre bathe:beach farm:field climb:mountain skate:rink hike:trail"),
    ("The month after {} is", "January:February February:March March:April April:May May:June June:July July:August "
     "August:September September:October October:November November:December December:January"),
    ("In numbers, {} is", "one:1 two:2 three:3 four:4 five:5 six:6 seven:7 eight:8 nine:9 ten:10 eleven:11 twelve:12 twenty:20 "
     "thirty:30 fifty:50 ninety:90"),
]


def questions():
    draw = random.Random(7)
    for gap, table in TABLES:
        pairs = [pair.split(":") for pair in table.split()]
        answers = sorted({answer for _, answer in pairs})
        for word, answer in pairs:
            wrong = draw.sample([other for other in answers if other not in (answer, word)], 3)
            choices = draw.sample([answer, *wrong], 4)
            yield {"question": gap.format(word), "choices": choices, "answer": choices.index(answer)}


TASK = """task: choices
dataset_path: json
dataset_kwargs:
  data_files:
    test: {}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: acc
"""


def make(folder):
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "choices.jsonl"
    data.write_text("".join(json.dumps(q) + "\n" for q in questions()), encoding="utf-8")
    (folder / "choices.yaml").write_text(TASK.format(json.dumps(str(data.resolve()))), encoding="utf-8")


def read_samples(path):
    """By question: the log-likelihoods of its choices, and the index of the right one."""
    out = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        sample = json.loads(line)
        # What lm-eval has of each choice: [log-likelihood, whether it is the most likely text].
        values = [float(response[0]) for response in sample["filtered_resps"]]
        out[sample["doc"]["question"]] = values, sample["doc"]["answer"]
    return out


def compare(a, b):
    if set(a) != set(b) or not a:
        sys.exit(f"choices.py: {len(a)} and {len(b)} questions, which are not the same")
    chosen = [(max(range(4), key=a[q][0].__getitem__), max(range(4), key=b[q][0].__getitem__), a[q][1]) for q in a]
    apart = [abs(x - y) for q in a for x, y in zip(a[q][0], b[q][0])]
    # How much worse one run thinks the other's choice is than its own.
    margins = [max(a[q][0][i] - a[q][0][j], b[q][0][j] - b[q][0][i]) for q, (i, j, _) in zip(a, chosen) if i != j]
    mean = [statistics.fmean(x for values, _ in run.values() for x in values) for run in (a, b)]
    count = len(chosen)
    return [("questions", str(count)),
            ("same choice", f"{sum(i == j for i, j, _ in chosen)} ({sum(i == j for i, j, _ in chosen) / count:.1%})"),
            ("largest gap, in either run, between two choices that differ", f"{max(margins, default=0):.3f}"),
            ("right in A, in B", f"{sum(i == right for i, _, right in chosen)}, {sum(j == right for _, j, right in chosen)}"),
            ("mean log-likelihood of a choice in A, in B", f"{mean[0]:.4f}, {mean[1]:.4f}"),
            ("difference of log-likelihoods: mean, median, largest",
             f"{statistics.fmean(apart):.4f}, {statistics.median(apart):.4f}, {max(apart):.4f}")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("make").add_argument("folder", type=pathlib.Path)
    two = commands.add_parser("compare")
    two.add_argument("a", type=pathlib.Path)
    two.add_argument("b", type=pathlib.Path)
    options = parser.parse_args()
    if options.command == "make":
        make(options.folder)
        return
    print("| | |\n|---|---|")
    for name, value in compare(read_samples(options.a), read_samples(options.b)):
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
