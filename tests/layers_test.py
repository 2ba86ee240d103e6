"""The rules that a compiler does not check: which folder includes which, and what files must not say.

layers_test.py check ROOT   checks a source tree; one line per breach, exit code 1 if there is any
layers_test.py self-test    plants one breach of each rule in a small tree and sees that it is found
"""

import os
import pathlib
import re
import sys
import tempfile
import unittest

# In the order of the layers: a folder may include itself and those before it.
LAYERS = ["base", "contract", "plan", "ops", "model", "exec", "cache", "sched", "engine", "cluster", "server", "runtime", "apps"]
# Stricter than the order.
ONLY = {"contract": {"base"}, "ops": {"base"}, "plan": {"contract", "base"}, "sched": {"plan", "contract", "base"}}

MAX_LINES = 600
REASON = re.compile(r"in one file because")
REASON_WITHIN_LINES = 12

# Published systems. Only policies and mechanisms may know one by name; the rest of the engine learns abilities.
# A match is a whole word of an identifier: CacheOpt, not CacheOptions; eLLM, not cellmap.
SYSTEMS = re.compile(
    r"(?i:vllm|sarathi|distkv|apt[-_ ]?serve|infinite[-_ ]?llm|cacheopt(?![a-z]))"
    r"|layerkv|LayerKV|LAYERKV"
    r"|(?<![A-Za-z])k?(?:ellm|eLLM|ELLM|orca|ORCA)(?![a-z])"
    r"|(?<![A-Z])(?:Ellm|Orca)(?![a-z])")
SYSTEMS_FORBIDDEN_IN = {"base", "contract", "plan", "ops", "model", "exec", "cache", "engine", "cluster"}
SYSTEMS_ALLOWED_UNDER = ("src/sched/policies/", "src/sched/mechanisms/", "src/sched/registry.")

# Written in pieces, so that this file does not break its own rule.
PRIVATE_PATHS = re.compile(r"(?<![\w.~}-])/(?:" + "|".join(["work", "root", "tmp", r"home/\w+"]) + r")/")
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
TEXT_FOLDERS = ["src", "apps", "tests", "bench", "cmake", "tools", "docs", "deploy", "web", ".ci"]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def read(path):
    return path.read_text(encoding="utf-8", errors="replace")


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def sources(root, *folders):
    """(path, path inside the tree) of every C++ and CUDA file."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in {".h", ".cc", ".cuh", ".cu"}:
                yield path, path.relative_to(root).as_posix()


def layer_of(inside):
    parts = inside.split("/")
    return "apps" if parts[0] == "apps" else parts[1]


def without_comments(text):
    """The same text with comments blanked, so that line numbers stay; a string is code."""
    def blank(match):
        found = match.group(0)
        return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)
    return COMMENT_OR_STRING.sub(blank, text)


# What the scan for definitions must not trip over: comments, strings (raw ones too), characters (but not the ' within a
# number) and preprocessor lines.
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"'
                      r"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:\\\n|[^\n])*", re.DOTALL | re.MULTILINE)
NAMESPACE = re.compile(r"(?:inline\s+)?namespace\s*([\w:]*)$")
TYPE = re.compile(r"(?:typedef\s+)?(?:class|struct|union|enum(?:\s+(?:class|struct))?)\s+(?:\[\[[^]]*\]\]\s*|alignas\([^)]*\)\s*)*"
                  r"([\w:]+(?:\s*<.*>)?)\s*(?:final\s*)?(?::(?!:).*)?$", re.DOTALL)
FUNCTION = re.compile(r"(\boperator\s*(?:\(\)|[^\s\w(]+|[\w:]+)|[\w:~]+)\s*(\(.*\))[\w\s]*(?:->.*)?$", re.DOTALL)
BUILT_IN = {"int", "long", "short", "char", "unsigned", "float", "double", "bool", "size_t", "const"}
CONSTANT = re.compile(r"(?:inline\s+|static\s+|constexpr\s+|const\s+)+[^(=]*?\b(\w+)\s*(?:\[[^=]*\]\s*)*(?:=.*)?$", re.DOTALL)
ALIAS = re.compile(r"using\s+(\w+)\s*=")


def without_template_heads(head):
    """`head` without the template<…> that it begins with, of which there may be several."""
    while match := re.match(r"template\s*<", head):
        depth, at = 1, match.end()
        while depth and at < len(head):
            depth += {"<": 1, ">": -1}.get(head[at], 0)
            at += 1
        head = head[at:].lstrip()
    return head


def without_names(parameters):
    """The types of the parameters `(…)`, without their names and defaults."""
    parts, depth, part = [], 0, ""
    for mark in parameters.strip()[1:-1] + ",":
        depth += {"<": 1, "(": 1, "{": 1, "[": 1, ">": -1, ")": -1, "}": -1, "]": -1}.get(mark, 0)
        if mark == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += mark
    types = []
    for part in parts:
        words = re.findall(r"[\w:]+(?:<.*>)?|[^\s\w]", part.split("=")[0])
        if len(words) > 1 and re.fullmatch(r"\w+", words[-1]) and words[-2] != "const" and words[-1] not in BUILT_IN:
            words.pop()
        types.append(" ".join(words))
    return f"({', '.join(types)})"


def definitions(text, header):
    """(qualified name, offset) of what `text` defines at the scope of namespaces with a name: types anywhere; in a header
    also functions, with their parameters, constants and aliases. Of functions in sources the linker sees two definitions, but
    not of inline ones and templates."""
    text = NOT_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group(0)), text)
    scopes = []  # of each open namespace: its name, or None for one that has none
    begin = 0    # of the declaration that is being read

    def named(name):
        return "::".join([scope for scope in scopes if scope] + [name])

    def after_braces(at):
        depth = 0
        while at < len(text):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
            if depth == 0:
                return at
        return at

    at = 0
    while at < len(text):
        mark = text[at]
        if mark not in "{};":
            at += 1
            continue
        head = without_template_heads(text[begin:at].strip())
        start = begin + len(text[begin:at]) - len(text[begin:at].lstrip())
        visible = None not in scopes
        at += 1
        if mark == "}":
            if scopes:
                scopes.pop()
        elif mark == "{" and (match := NAMESPACE.match(head)):
            scopes.append(match.group(1) or None)
        elif mark == "{" and re.match(r'extern\s*$', head):
            scopes.append("")  # extern "C"
        else:
            if mark == "{":
                at = after_braces(at - 1)
            found = TYPE.match(head) if mark == "{" else None
            name = found and re.sub(r"\s+", "", found.group(1))
            if not name and header:
                if match := ALIAS.match(head):
                    name = match.group(1)
                elif (match := CONSTANT.match(head)) and not re.search(r"\(|\boperator\b", head.split("=")[0]):
                    name = match.group(1)
                elif (mark == "{" and (match := FUNCTION.search(head)) and "::" not in match.group(1)
                      and "=" not in head[:match.start()]):
                    name = re.sub(r"\s+", "", match.group(1)) + without_names(match.group(2))
            if name and visible:
                yield named(name), start
        begin = at


def check_definitions(root):
    """Two types, or two inline functions or constants of headers, that share a qualified name: where both are in one
    program it has undefined behaviour, and no compiler sees it."""
    seen = {}
    for path, inside in sources(root, "src", "apps", "tests", "bench"):
        text = read(path)
        for name, offset in definitions(text, path.suffix in {".h", ".cuh"}):
            where = f"{inside}:{line_of(text, offset)}"
            if name in seen and not seen[name].startswith(inside + ":"):
                yield f"{where}: {name} is defined in {seen[name]}, too; a name has one definition"
            seen.setdefault(name, where)


def check_includes(root):
    for path, inside in sources(root, "src", "apps"):
        layer = layer_of(inside)
        if layer not in LAYERS:
            yield f"{inside}:1: src/{layer} is no layer; the layers are {', '.join(LAYERS)}"
            continue
        text = without_comments(read(path))
        for match in INCLUDE.finditer(text):
            bracket, name = match.groups()
            where = f"{inside}:{line_of(text, match.start(1))}"
            target = name.split("/")[0]
            if layer == "apps" and name.startswith("apps/") and (root / name).is_file():
                continue
            if bracket == "<" and not (root / "src" / name).is_file():
                continue
            if target not in LAYERS or "/" not in name:
                yield f'{where}: "{name}": an include is a path from src/, as in "base/status.h", or of apps/ one from the root'
            elif LAYERS.index(target) > LAYERS.index(layer):
                yield f"{where}: {layer}/ includes {name}, which is above it"
            elif layer in ONLY and target != layer and target not in ONLY[layer]:
                yield f"{where}: {layer}/ includes {name}, and may include only {', '.join(sorted(ONLY[layer]))}"
            elif inside.startswith("src/sched/mechanisms/") and name.startswith("sched/policies/"):
                yield f"{where}: a mechanism includes the policy {name}; policies are made of mechanisms"


def check_system_names(root):
    for path, inside in sources(root, "src"):
        if inside.startswith(SYSTEMS_ALLOWED_UNDER):
            continue
        if layer_of(inside) not in SYSTEMS_FORBIDDEN_IN | {"sched"}:
            continue
        text = read(path)  # with its comments: they would make the code look like one system's
        for match in SYSTEMS.finditer(text):
            yield (f"{inside}:{line_of(text, match.start())}: '{match.group(0)}': a system's name is known only "
                   f"to src/sched/policies and src/sched/mechanisms")


def check_lengths(root):
    for path, inside in sources(root, "src"):
        lines = read(path).splitlines()
        if len(lines) > MAX_LINES and not REASON.search("\n".join(lines[:REASON_WITHIN_LINES])):
            yield (f"{inside}:1: {len(lines)} lines, more than {MAX_LINES}: split it, or say 'in one file because' "
                   f"and why in its first lines")


def check_pragma_once(root):
    for path, inside in sources(root, "src", "apps", "tests", "bench"):
        if path.suffix in {".h", ".cuh"} and "#pragma once" not in read(path).splitlines():
            yield f"{inside}:1: a header without #pragma once"


def check_words(root):
    files = [path for path in root.iterdir() if path.is_file()]
    for folder in TEXT_FOLDERS:
        files += [path for path in (root / folder).rglob("*") if path.is_file()]
    for path in sorted(files):
        if path.resolve() == pathlib.Path(__file__).resolve() or "__pycache__" in path.parts:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue  # no text, or gone while we looked
        inside = path.relative_to(root).as_posix()
        for match in PRIVATE_PATHS.finditer(text):
            yield f"{inside}:{line_of(text, match.start())}: '{match.group(0)}' is a path of one machine"
        for match in UNFINISHED.finditer(text):
            yield f"{inside}:{line_of(text, match.start())}: '{match.group(0)}': finish it, or leave it out"


def check_scripts(root):
    """Documentation prints their names as commands."""
    for folder in ("tools", "bench", "deploy", "tests", ".ci"):
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and not os.access(path, os.X_OK) and "__pycache__" not in path.parts:
                with path.open("rb") as file:
                    if file.read(2) == b"#!":
                        yield f"{path.relative_to(root).as_posix()}:1: a script with a #! line that cannot be executed: chmod +x"


CHECKS = [check_includes, check_definitions, check_system_names, check_lengths, check_pragma_once, check_words, check_scripts]


def breaches(root):
    return [breach for check in CHECKS for breach in check(root)]


class SelfTest(unittest.TestCase):
    """Each rule must find a planted breach, and must not find what only looks like one."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for layer in LAYERS[:-1]:
            self.write(f"src/{layer}/thing.h", "#pragma once\n")

    def write(self, inside, text):
        path = self.root / inside
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def assert_breaches(self, *expected):
        found = breaches(self.root)
        self.assertEqual(len(found), len(expected), found)
        for part, breach in zip(expected, found):
            self.assertIn(part, breach)

    def include(self, inside, name):
        self.write(inside, f'// A file.\n#include "{name}"\n')

    def test_a_clean_tree_has_none(self):
        self.write("src/engine/a.cc", '#include "engine/thing.h"\n#include "cache/thing.h"\n#include <vector>\n')
        self.write("src/sched/a.cc", '#include "contract/thing.h"\n#include "sched/thing.h"\n')
        self.write("apps/main.cc", '#include "server/thing.h"\n#include "apps/serve/flags.h"\n#include <CLI/CLI.hpp>\n')
        self.write("apps/serve/flags.h", "#pragma once\n")
        self.assert_breaches()

    def test_every_upward_include_is_found(self):
        for low, layer in enumerate(LAYERS[:-1]):
            for above in LAYERS[low + 1:-1]:
                self.include(f"src/{layer}/a.cc", f"{above}/thing.h")
                self.assert_breaches(f"src/{layer}/a.cc:2: {layer}/ includes {above}/thing.h, which is above it")
            (self.root / f"src/{layer}/a.cc").unlink(missing_ok=True)

    def test_the_narrow_layers(self):
        for layer, target in [("sched", "cache"), ("sched", "model"), ("ops", "contract")]:
            self.include(f"src/{layer}/a.cc", f"{target}/thing.h")
            self.assert_breaches(f"{layer}/ includes {target}/thing.h, and may include only")
            (self.root / f"src/{layer}/a.cc").unlink()

    def test_angle_brackets_and_subfolders_do_not_hide(self):
        self.write("src/exec/cuda/a.cu", "#include <server/thing.h>\n")
        self.assert_breaches("src/exec/cuda/a.cu:1: exec/ includes server/thing.h")

    def test_an_include_inside_a_comment_is_none(self):
        self.write("src/base/a.cc", '// #include "engine/thing.h"\n/*\n#include "engine/thing.h"\n*/\n')
        self.assert_breaches()

    def test_relative_includes(self):
        self.include("src/engine/a.cc", "thing.h")
        self.include("src/engine/b.cc", "../cache/thing.h")
        self.assert_breaches("a path from src/", "a path from src/")
        self.include("apps/serve/a.cc", "flags.h")
        self.write("apps/serve/flags.h", "#pragma once\n")
        self.assert_breaches("a path from src/", "a path from src/", "apps/serve/a.cc:2: ")

    def test_a_name_with_two_definitions(self):
        before, after = "namespace kvasir {\nnamespace ops {\n", "}  // namespace ops\n}\n"
        for first, second in [("struct Run { int a; };", "struct Run final : Base { int a[10'000]; };"),
                              ("class Run {};", "enum class Run : char { kA };"),
                              ("template <class T> struct Run { T a; };", "template <class T, class U = Set<T>> class Run {};"),
                              ("struct Other { struct Run {}; } x; struct Run {};", 'auto s = R"(})"; char c = \'{\'; union Run {};')]:
            self.write("src/base/a.cc", before + first + after)
            self.write("src/engine/b.cc", "namespace kvasir::ops {\n" + second + "\n}\n")
            self.assert_breaches("src/engine/b.cc:2: kvasir::ops::Run is defined in src/base/a.cc:3, too")
        for first, second in [("inline int f(int a) { return a; }", "inline long f(int  b) { return b + 1; }"),
                              ("inline int f(const Set<int, 2>& a, int b = 1) { return b; }",
                               "inline int f(const Set<int, 2>& x, int) { return 2; }"),
                              ("inline bool operator==(const A& x, const A& y) { return true; }",
                               "inline bool operator == (const A& a, const A& b) { return false; }"),
                              ("constexpr int kSize = 1;", "inline constexpr long kSize{2};"),
                              ("constexpr int kSizes[] = {1, 2};", "constexpr std::array<int, 2> kSizes = {1, 2};"),
                              ("using Row = int;", "struct Row {};")]:
            self.write("src/base/a.cc", "")
            self.write("src/engine/b.cc", "")
            self.write("src/base/a.h", "#pragma once\n" + before + first + after)
            self.write("src/engine/b.h", "#pragma once\n" + before + second + after)
            self.assert_breaches("is defined in src/base/a.h:4, too; a name has one definition")

    def test_what_only_looks_like_two_definitions(self):
        self.write("src/base/a.h", "#pragma once\nnamespace kvasir {\nstruct Run { int a; };\ninline int f(int a) { return a; }\n"
                   "inline bool operator==(const A& x, const A& y) { return true; }\n"
                   "constexpr int kSize = 1;\nint g(Run run);\n}\n")
        for text in ["namespace kvasir {\nnamespace {\nstruct Run {};\n}\n}\n",
                     "namespace kvasir {\nstruct Run;\nstruct Other { struct Run {}; };\n"
                     "struct Run make() { struct Run run{}; return run; }\n}\n",
                     "namespace kvasir::ops {\nstruct Run {};\nconstexpr int kSize = 2;\n}\n",
                     "// struct Run {};\n#define RUN struct Run {\\\n  int a; };\nconst char* s = \"struct Run {};\";\n",
                     "namespace kvasir {\ninline bool operator==(const C& x, const C& y) { return true; }\n"
                     "inline bool operator<(const A& x, const A& y) { return true; }\n}\n",
                     "namespace kvasir {\ninline int f(unsigned long) { return 1; }\ninline int f(int* a) { return *a; }\n}\n",
                     "namespace kvasir {\ninline int f(long a) { constexpr int kSize = 1; return kSize; }\n"
                     "int g(Run run) { return 1; }\n}\n",
                     "namespace kvasir {\ntemplate <> struct Run<int> {};\ntemplate <> struct Run<long> {};\n}\n"]:
            self.write("src/engine/b.h", "#pragma once\n" + text)
            self.assert_breaches()

    def test_a_mechanism_does_not_include_a_policy(self):
        self.write("src/sched/policies/p.h", "#pragma once\n")
        self.include("src/sched/mechanisms/m.cc", "sched/policies/p.h")
        self.assert_breaches("a mechanism includes the policy")

    def test_an_unknown_layer(self):
        self.write("src/utils/a.cc", "")
        self.assert_breaches("src/utils is no layer")

    def test_system_names(self):
        for word in ["LayerKV", "layerkv", "kLayerKVTier", "CacheOpt", "cacheopt_units", "AptServe", "apt_serve",
                     '"Apt-Serve"', "eLLM", "ellm", "kEllm", "use_ellm", "useEllm", "ELLM", "InfiniteLLM", "infinite_llm",
                     "DistKV", "distkv", "vllm", "vLLM", "VllmPolicy", "sarathi", "SarathiPolicy", "orca",
                     "kOrca", "isOrca", "OrcaPolicy"]:
            self.write("src/engine/a.cc", f"\nauto a = {word};\n")
            self.assert_breaches("src/engine/a.cc:2: ")

    def test_system_names_in_comments(self):
        self.write("src/engine/a.cc", "// As LayerKV's Eq. 3 has it.\nint a;  /* or\nvLLM */\n")
        self.assert_breaches("src/engine/a.cc:1: 'LayerKV'", "src/engine/a.cc:3: 'vLLM'")

    def test_what_only_looks_like_a_system(self):
        self.write("src/cache/a.cc", "CacheOptions cellmap; LayerKv layer_kv; fllm; orcas; 1; LLM; kLLM;\n")
        self.write("src/sched/policies/sarathi.cc", "auto sarathi = 1;  // Sarathi-Serve, Algorithm 3\n")
        self.write("src/sched/registry.cc", 'auto a = "sarathi";\n')
        self.write("src/server/a.cc", 'auto flag = "sarathi";\n')
        self.assert_breaches()

    def test_other_files_of_sched_know_no_system(self):
        self.write("src/sched/a.cc", "auto sarathi = 1;\n")
        self.assert_breaches("src/sched/a.cc:1: 'sarathi'")

    def test_lengths(self):
        self.write("src/ops/a.cc", "\n" * (MAX_LINES + 1))
        self.assert_breaches("src/ops/a.cc:1: 601 lines")
        self.write("src/ops/a.cc", "// The table is in one file because it is made by one script.\n" + "\n" * MAX_LINES)
        self.assert_breaches()
        self.write("src/ops/a.cc", "\n" * MAX_LINES)
        self.assert_breaches()

    def test_pragma_once(self):
        self.write("tests/a.h", "// #pragma once\n")
        self.assert_breaches("tests/a.h:1: a header without #pragma once")

    def test_paths_of_one_machine(self):
        for path in ["work", "root", "tmp", "home/me"]:
            self.write("docs/a.md", f"see \n`/{path}/notes`\n")
            self.assert_breaches("docs/a.md:2: ")
        self.write("docs/a.md", "frame" + "work/a, ${TMPDIR:-/tmp} and https://a.org/work/b\n")
        self.assert_breaches()

    def test_scripts(self):
        self.write("bench/a.py", "#!/usr/bin/env python3\n")
        self.write("bench/b.py", "import sys\n")
        self.assert_breaches("bench/a.py:1: a script")
        (self.root / "bench/a.py").chmod(0o755)
        self.assert_breaches()

    def test_unfinished_work(self):
        self.write("apps/a.cc", "// TO" + "DO: later\n")
        self.assert_breaches("apps/a.cc:1: ")


def main():
    if sys.argv[1:] == ["self-test"]:
        unittest.main(argv=sys.argv[:1])
    if len(sys.argv) != 3 or sys.argv[1] != "check":
        sys.exit(__doc__)
    root = pathlib.Path(sys.argv[2]).resolve()
    files = sum(1 for _ in sources(root, "src", "apps", "tests", "bench"))
    if not files:
        sys.exit(f"{root} holds no sources")
    found = breaches(root)
    print("\n".join(found + [f"{files} files, {len(found)} breaches"]))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
