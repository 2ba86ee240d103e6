#!/usr/bin/env python3
"""Writes tests/golden/tokenizer_*.txt: strings, and what Hugging Face's tokenizers makes of them.

    python3 make_tokenizer_goldens.py MODEL.gguf [OUTPUT_FOLDER]

Needs the package `tokenizers`. The tokenizer is rebuilt from the model file's own vocabulary and merges.

A line is MODE TAB CHECK TAB STRING. MODE is `s` (the text of special tokens becomes these tokens) or `p`
(it is plain text). CHECK is the ids in hexadecimal with commas, or where that is longer, `#` and the 64-bit
FNV-1a hash of the ids as little-endian int32. STRING escapes with a backslash: \\\\, \\n, \\t, \\r, and \\u{HEX}
for what does not print; \\x{COUNT:STRING} repeats, and is the whole of its line's string.

Code points that Unicode 14.0 does not assign are left out. The engine's tables are ICU 72's (Unicode 15.0),
those of `tokenizers` 0.23 are newer: some 5,000 letters and digits that 15.0 does not know are neither letter
nor digit to the engine. On every code point that 15.0 assigns the two agree.
"""

import random
import struct
import sys
import unicodedata
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


def read_metadata(path):
    with open(path, "rb") as f:
        magic, _version, _tensors, pairs = struct.unpack("<4sIQQ", f.read(24))
        assert magic == b"GGUF", "not a GGUF file"

        def string():
            return f.read(struct.unpack("<Q", f.read(8))[0]).decode()

        def value(kind):
            if kind == 8:
                return string()
            if kind == 9:
                element, count = struct.unpack("<IQ", f.read(12))
                return [value(element) for _ in range(count)]
            return struct.unpack(FORMATS[kind], f.read(struct.calcsize(FORMATS[kind])))[0]

        result = {}
        for _ in range(pairs):
            key = string()
            result[key] = value(struct.unpack("<I", f.read(4))[0])
        return result


def build(metadata, with_special):
    tokens = metadata["tokenizer.ggml.tokens"]
    types = metadata["tokenizer.ggml.token_type"]
    assert metadata["tokenizer.ggml.pre"] == "smollm"
    merges = [tuple(m.split(" ", 1)) for m in metadata["tokenizer.ggml.merges"]]
    result = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    result.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    result.decoder = decoders.ByteLevel()
    if with_special:
        special = [t for t, kind in zip(tokens, types) if kind == 3]
        result.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return result


ENGLISH = """the quick brown fox jumps over a lazy dog while seven wizards boxed quietly It was never clear whether
he'd meant to go or they'll have to wait until she's done We're sure you've seen what I'm thinking isn't it
Paged attention keeps keys and values in blocks so that memory is not wasted on sequences nobody asked for
Naturally electroencephalographically speaking counterrevolutionaries misunderstood the uncharacteristically
short introduction to thermodynamics and therefore left early Why not Because of rain said Mr O'Neill""".split()

CODE = [
    "def f(x):\n    return x ** 2 + 3\n", "for (int i = 0; i < n; ++i) {\n\tsum += a[i];\n}\n",
    "#include <vector>\nint main() { return 0; }", "SELECT * FROM t WHERE id=42 AND name LIKE '%x%';",
    "<div class=\"a-b_c\">&nbsp;</div>", "x = {'key': [1, 2.5e-3, None], \"k2\": True}", "if __name__ == '__main__':",
    "std::unordered_map<std::string, int64_t> m;", "https://example.org/a/b?c=d&e=%20f#g", "C:\\Users\\x\\y.txt",
    "let r: Result<Vec<u8>, _> = foo()?;", "0xDEADBEEF | (1u << 31)", "$ ls -la | grep '^d' && echo done",
    "/* comment */ // another\r\n", "const f = async (x) => { await g(x); };", "\\frac{1}{2}\\alpha_{i}^{2}",
    "{\"a\":[{\"b\":null}]}", "@decorator\nclass A(B):\n\n\n    pass\n", "!!!???...---===+++", "a->b.c[d](e)",
]

SCRIPTS = {
    "latin": "àéîõüßñçøåæœđłżžşğıİſ", "greek": "αβγδεζηθικλμνξοπρστυφχψωΆΈΉ", "cyrillic": "абвгдежзийклмнопрстуфхцчшщъыьэюяёЇ",
    "hebrew": "אבגדהוזחטיכלמנסעפצקרשת", "arabic": "ابتثجحخدذرزسشصضطظعغفقكلمنهوي", "devanagari": "अआइईउऊकखगघचछजझटठडढतथदधनपफबभमयरलवशषसह",
    "devanagari_marks": "कािीुूृेैोौं्", "thai": "กขคงจฉชซญดตถทนบปผพฟมยรลวสหอฮะาิีึืุูเแโใไ่้", "han": "的一是不了人我在有他这为之大来以个中上们",
    "kana": "あいうえおかきくけこアイウエオカキクケコー", "hangul": "가나다라마바사아자차카타파하한국어", "ethiopic": "ሀለሐመሠረሰቀበተኀነአከወዐዘየደገጠ",
    "georgian": "აბგდევზთიკლმნოპჟრსტუფქღყშჩცძწჭხჯჰ", "armenian": "աբգդեզէըթժիլխծկհձղճմյնշոչպջռսվտր", "tamil": "அஆஇஈஉஊஎஏஐஒகஙசஞடணதநபமயரலவ",
    "khmer": "កខគឃងចឆជឈញដឋឌឍណតថទធនបផពភម", "tibetan": "ཀཁགངཅཆཇཉཏཐདནཔཕབམཙཚཛཝཞཟའཡརལཤསཧཨ", "cherokee": "ᎠᎡᎢᎣᎤᎥᎦᎧᎨᎩᎪᎫ", "gothic": "𐌰𐌱𐌲𐌳𐌴𐌵𐌶𐌷𐌸",
    "math": "𝒜𝒞𝒟𝔸𝔹𝟎𝟏𝟐𝟛∑∫√∞≈≠≤≥∂∇", "cuneiform": "𒀀𒀁𒀂𒀃𒀄", "currency": "€£¥₹₿¢₩", "box": "─│┌┐└┘├┤█▓▒░", "punctuation": "“”‘’«»—–…•·¿¡§¶†‡",
}

DIGITS = "0123456789٠١٢٣٤٥۶۷۸۹०१२३४५๐๑๒๓༠༡༢０１２３𝟎𝟏𝟐𝟘𝟙²³¹⁴₁₂½¼¾⅓⅛ⅠⅡⅢⅣⅫⅰⅱ①②③⑩㊀㊁㉑৴৵௰௱፩፪፲𐄇𐄈〇〡〢㆒㆓"

EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "❤️", "🇫🇷🇩🇪", "👩🏿‍💻", "☺", "☺️", "🤷‍♂️", "1️⃣", "🫠", "✈️", "🧑‍🚀", "🏴󠁧󠁢󠁥󠁮󠁧󠁿"]

SPACES = ["\t", "\n", "\v", "\f", "\r", " ", "\x85", "\xa0", "\u1680", "\u2000", "\u2003", "\u2009", "\u200a", "\u2028",
          "\u2029", "\u202f", "\u205f", "\u3000"]
NOT_SPACES = ["\x1c", "\x1d", "\x1e", "\x1f", "\u180e", "\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\x00", "\x08",
              "\x7f", "\x80", "\x9f", "\xad", "\u2800", "\u3164"]

CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'M", "'LL", "'D", "’s", "'", "''",
                "'x", "'r", "'v", "'l", "'rex", "'sst", "'llama", "'1", "' s", "'é"]

COMBINING = ["\u0301", "\u0308", "\u0327", "\u20dd", "\u0e49", "\u093f", "\u05b7", "\u064b", "\ufe0f", "\u1ab0"]


def assigned(text):
    """Drops what this interpreter's tables, which main() has checked, do not assign."""
    return "".join(c for c in text if unicodedata.category(c) not in ("Cn", "Cs"))


def make_strings(special):
    """Yields (file, mode, text). One generator for each kind of trouble, all from one seed."""
    rng = random.Random(20240229)
    pick, count = rng.choice, rng.randint

    def words(low, high):
        return " ".join(pick(ENGLISH) for _ in range(count(low, high)))

    def script_word():
        letters = pick(list(SCRIPTS.values()))
        return "".join(pick(letters) for _ in range(count(1, 7)))

    scalar = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    yield "text", "s", ""
    for c in range(256):
        yield "edge", "s", chr(c)
        yield "edge", "s", "a" + chr(c) + "b"
    for a in SPACES + NOT_SPACES:
        for form in ("{0}x", " {0}", "{0} ", "x{0}{0}y", "1{0}2", "  {0}\n", "{0}{0}", "'{0}s", " {0} x"):
            yield "edge", "s", form.format(a)
    for a in CONTRACTIONS:
        for form in ("it{0}", "{0}", " {0} ", "I{0} go", "{0}{0}", "9{0}", "\n{0}é", "{0}'s"):
            yield "edge", "s", form.format(a)
    for n in (1, 2, 3, 7, 31, 64, 255, 1000, 5000):
        for unit in (" ", "\n", "a", "=", "é", "ab", "1", "的", "😀", "\t ", "-_", "\x04", "aaab", " \u3000", "'s", "\u0301"):
            yield "edge", "s", (unit, n)
    for _ in range(2200):
        yield "text", "s", words(1, 9) + pick([".", "?", "!", ",", "", "\n", " ", ":\n\n", "...", ' "', ")"])
    for _ in range(600):
        word = pick(ENGLISH)
        yield "text", "s", pick([word.upper(), word.title(), word[::-1], word * 2, " " + word, word + "\n", word + "s'", word + "'s"])
    for _ in range(900):
        parts = [pick(CODE) for _ in range(count(1, 2))]
        text = pick(["", "\n", " ", "    ", "\t"]).join(parts)
        begin = count(0, len(text) // 2)
        yield "code", "s", text[begin : begin + count(4, 60)]
    for _ in range(1600):
        yield "scripts", "s", pick([" ", "", " ", "\n", ", ", "1"]).join(script_word() for _ in range(count(1, 4)))
    for _ in range(500):
        yield "scripts", "s", "".join(pick(EMOJI) + pick(["", " ", "a", "\u200d", "!"]) for _ in range(count(1, 3)))
    for _ in range(500):
        yield "scripts", "s", "".join(pick("aeinoкαक한 ") + "".join(pick(COMBINING) for _ in range(count(0, 2))) for _ in range(count(1, 6)))
    for _ in range(1000):
        yield "digits", "s", "".join(pick([pick(DIGITS), str(count(0, 9999)), pick([" ", "  ", ".", ",", "-", "x", "\n", "é", " a"])]) for _ in range(count(1, 7)))
    for _ in range(1000):
        yield "spaces", "s", "".join(pick([pick(SPACES), pick(SPACES), " ", "  ", pick(NOT_SPACES), "a", "é", "1", ".", "'s", "的"]) for _ in range(count(1, 9)))
    for _ in range(500):
        yield "spaces", "s", "".join(pick(CONTRACTIONS + [" ", "it", "you", "我", "3"]) for _ in range(count(1, 5)))
    for mode in "sp":
        for token in special:
            for form in ("{0}", "a{0}b", " {0} ", "{0}{0}", "{0}\n", "<{0}>", "1{0}'s"):
                yield "special", mode, form.format(token)
            for cut in (1, len(token) // 2, len(token) - 1):
                yield "special", mode, token[:cut] + pick(["", " ", token, token[1:], "x"])
        for _ in range(300):
            yield "special", mode, "".join(pick([pick(special), words(1, 2), " ", "\n", "<|", "|>", "<", "😀", "12"]) for _ in range(count(1, 4)))
    for _ in range(1200):
        plane = pick([0x80, 0x800, 0x3000, 0x10000, 0x10000, 0x20000, 0x110000])
        low = {0x80: 1, 0x800: 0x80, 0x3000: 0x800, 0x10000: 0x3000, 0x20000: 0x10000, 0x110000: 0x20000}[plane]
        yield "random", "s", "".join(chr(pick(scalar) if count(0, 9) == 0 else count(low, plane - 1)) for _ in range(count(1, 8)) ).encode("utf-8", "ignore").decode()
    for _ in range(900):
        yield "random", "s", "".join(pick([pick(ENGLISH), script_word(), pick(EMOJI), pick(DIGITS), pick(SPACES), pick(NOT_SPACES), pick("!?,.;:()[]{}@#$%^&*"), " "]) for _ in range(count(1, 6)))


def fnv1a(ids):
    result = 0xCBF29CE484222325
    for byte in struct.pack(f"<{len(ids)}i", *ids):
        result = (result ^ byte) * 0x100000001B3 % 2**64
    return result


def escape(text):
    out = []
    for c in text:
        named = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(c)
        prints = c == " " or (c.isprintable() and unicodedata.category(c)[0] not in "MCZ")
        out.append(named or (c if prints else f"\\u{{{ord(c):x}}}"))
    return "".join(out)


def main():
    if unicodedata.unidata_version != "14.0.0":
        sys.exit("Run this with Python 3.11: it knows Unicode 14.0, and newer tables would let too much through.")
    metadata = read_metadata(sys.argv[1])
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else Path(__file__).parent)
    special = [t for t, kind in zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]) if kind == 3]
    tokenizers = {"s": build(metadata, True), "p": build(metadata, False)}
    files, seen = {}, set()
    for file, mode, text in make_strings(special):
        written = escape(text) if isinstance(text, str) else f"\\x{{{text[1]}:{escape(text[0])}}}"
        text = text if isinstance(text, str) else text[0] * text[1]
        if text != assigned(text):
            text = assigned(text)
            written = escape(text)
        if (mode, text) in seen:
            continue
        seen.add((mode, text))
        ids = tokenizers[mode].encode(text, add_special_tokens=False).ids
        exact, hashed = ",".join(f"{i:x}" for i in ids), f"#{fnv1a(ids):016x}"
        check = exact if len(exact) <= len(hashed) else hashed
        files.setdefault(file, []).append(f"{mode}\t{check}\t{written}\n")
    for file, lines in files.items():
        path = folder / f"tokenizer_{file}.txt"
        path.write_text("".join(lines), encoding="utf-8")
        print(f"{path.name}: {len(lines)} strings, {path.stat().st_size} bytes")
    print(f"{sum(map(len, files.values()))} strings")


if __name__ == "__main__":
    main()
