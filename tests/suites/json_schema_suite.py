"""Outputs of the default model under the schemas of the public JSON Schema Test Suite.

Each schema is sent as vLLM's structured_outputs.json. One that the server refuses must be refused with 400; of one that it
takes, outputs are sampled at several temperatures, and each that ended by itself must be valid under the schema, by the
library jsonschema. The figures are in docs/api.md.

  tests/suites/run.sh --outputs 2000       as many finished outputs at least (default 1,000)
"""

import argparse
import collections
import concurrent.futures
import json
import pathlib
import re
import sys

import jsonschema

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from fetch_suite import suite  # noqa: E402
from support import Server  # noqa: E402

DRAFTS = {"draft2020-12": jsonschema.Draft202012Validator, "draft2019-09": jsonschema.Draft201909Validator,
          "draft7": jsonschema.Draft7Validator, "draft6": jsonschema.Draft6Validator}
# What programs send: as pydantic writes models, and what agents declare of their tools.
USUAL = [
    {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0,
     "maximum": 120}, "tags": {"type": "array", "items": {"enum": ["a", "b"], "type": "string"}, "maxItems": 3}},
     "required": ["name", "age"], "additionalProperties": False},
    {"$defs": {"Pet": {"properties": {"kind": {"const": "cat", "type": "string"}, "lives": {"type": "integer", "minimum": 1,
     "maximum": 9}}, "required": ["kind", "lives"], "type": "object"}, "Dog": {"properties": {"kind": {"const": "dog", "type":
     "string"}, "good": {"default": True, "type": "boolean"}}, "required": ["kind"], "type": "object"}},
     "properties": {"pet": {"discriminator": {"propertyName": "kind"}, "oneOf": [{"$ref": "#/$defs/Pet"},
     {"$ref": "#/$defs/Dog"}]}}, "required": ["pet"], "type": "object"},
    {"type": "object", "properties": {"x": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
     "when": {"type": "string", "format": "date"}}, "required": ["x", "when"]},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}], "items": False, "minItems": 2},
    {"type": "number", "minimum": -1.5, "exclusiveMaximum": 2.25}, {"type": "integer", "exclusiveMinimum": -3, "maximum": 40},
    {"type": "integer", "multipleOf": 7}, {"type": "integer", "minimum": -20, "maximum": 20, "multipleOf": 3},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}, {"type": "string", "minLength": 3, "maxLength": 5},
    {"type": "object", "patternProperties": {"^[a-c]$": {"type": "boolean"}}, "maxProperties": 2},
    {"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}, "additionalProperties": {"type": "null"},
     "maxProperties": 3},
    {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}, "c": {"type": "null"}},
     "minProperties": 2},
    {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "boolean"},
     "maxProperties": 3},
    {"type": ["string", "integer"], "maxLength": 3, "maximum": 9, "minimum": 0},
]


def schemas():
    """(draft's validator, schema, its place in the suite)."""
    seen = set()
    for draft, validator in DRAFTS.items():
        for path in sorted((suite() / draft).rglob("*.json")):
            for group in json.loads(path.read_text()):
                schema = group["schema"]
                key = json.dumps(schema, sort_keys=True)
                if not isinstance(schema, dict) or key in seen:
                    continue
                seen.add(key)
                yield validator, schema, f"{draft}/{path.stem}: {group['description']}"
    for i, schema in enumerate(USUAL):
        yield jsonschema.Draft202012Validator, schema, f"usual {i}"


def ask(server, schema, temperature, seed, tokens):
    body = {"prompt": "Some JSON:\n", "max_tokens": tokens, "temperature": temperature, "seed": seed, "n": 4, "min_p": 0,
            "structured_outputs": {"json": schema}}
    status, _, answer = server.ask("POST", "/v1/completions", body)
    return status, json.loads(answer)


class Suite:
    def __init__(self, server):
        self.server = server
        self.refused = collections.Counter()
        self.finished = self.cut = self.accepted = 0
        self.invalid = []
        self.faults = []

    def run(self, case, round_number):
        """False: the schema was refused."""
        validator, schema, place = case
        temperature = (0.7, 1.0, 1.6)[round_number % 3]
        status, answer = ask(self.server, schema, temperature, 100 * round_number, 160)
        if status == 400:
            message = answer["error"]["message"]
            self.refused[re.sub(r"\d+", "N", message)] += 1
            if answer["error"]["param"] is None or "\n" in message:
                self.faults.append((place, f"a refusal of no field, or of several lines: {message}"))
            return False
        if status != 200:
            self.faults.append((place, f"{status} {answer}"))
            return False
        for choice in answer["choices"]:
            if choice["finish_reason"] != "stop":
                self.cut += 1
                continue
            self.finished += 1
            try:
                validator(schema).validate(json.loads(choice["text"]))
            except (ValueError, jsonschema.ValidationError) as error:
                self.invalid.append((place, choice["text"], str(error).splitlines()[0]))
        return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--outputs", type=int, default=1000)
    parser.add_argument("--cases", type=int, default=0, help="of the other suite")
    wanted = parser.parse_args().outputs
    with Server("--max-model-len", "512") as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
        run = Suite(server)
        cases = list(schemas())
        taken = [case for case, ok in zip(cases, pool.map(lambda case: run.run(case, 0), cases)) if ok]
        rounds = 1
        while taken and run.finished < wanted and rounds < 100 and not run.invalid:
            list(pool.map(lambda case: run.run(case, rounds), taken))
            rounds += 1
        server.stop()
    print(f"JSON Schema Test Suite: {len(cases)} schemas, {len(taken)} taken, {sum(run.refused.values())} refused; "
          f"{run.finished} outputs finished, {run.cut} were cut by max_tokens, {len(run.invalid)} invalid")
    for message, count in run.refused.most_common():
        print(f"  refused {count:4}: {message}")
    for place, text, why in run.invalid:
        print(f"  INVALID {place}: {text!r}: {why}")
    for place, fault in run.faults:
        print(f"  FAULT {place}: {fault}")
    sys.exit(1 if run.invalid or run.faults or run.finished < wanted else 0)


if __name__ == "__main__":
    main()
