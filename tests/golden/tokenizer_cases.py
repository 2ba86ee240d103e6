"""What the scripts that judge our tokenizers share: the pre-tokenizers as Hugging Face writes them, and random texts.

Code points that Unicode 14.0 does not assign are left out: the engine's tables are ICU 72's (Unicode 15.0), those of the
package `tokenizers` are newer.
"""

import random
import sys
import unicodedata

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
ANY_CASE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
LLAMA3 = ANY_CASE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + OTHERS + "|" + END
QWEN2 = ANY_CASE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + OTHERS + "|" + END
QWEN35 = ANY_CASE + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + END
UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
GPT4O = f"{UPPER}*{LOWER}+{ANY_CASE}?|{UPPER}+{LOWER}*{ANY_CASE}?" + r"|\p{N}{1,3}|" + SLASH + "|" + END
TEKKEN = f"{UPPER}*{LOWER}+|{UPPER}+{LOWER}*" + r"|\p{N}|" + SLASH + "|" + END
DEEPSEEK3 = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
             r"| ?[\p{P}\p{S}]+[\r\n]*|" + END)
DEEPSEEK_RANGES = """41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376-377 37b-37d 37f 386 388-38a 38c 38e-3a1
3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a
1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4
1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128
212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183-2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2-2cf3 a640-a66d
a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3
104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943"""
DEEPSEEK_LETTERS = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿ%s]+" % "".join(
    "-".join(chr(int(end, 16)) for end in part.split("-")) for part in DEEPSEEK_RANGES.split()[7:])

# Names of tokenizer.ggml.pre: the patterns that are applied one after the other.
PATTERNS = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "llama-bpe": [LLAMA3],
    "qwen2": [QWEN2],
    "qwen35": [QWEN35],
    "gpt-4o": [GPT4O],
    "tekken": [TEKKEN],
    "deepseek-v3": [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", DEEPSEEK3],
    "deepseek-llm": ["[\r\n]", DEEPSEEK_LETTERS, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-\ud7ff]+",
                     r"\p{N}+"],
    "deepseek-coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"],
    "bloom": [r" ?[^(\s|.,!?…。，、।۔،)]+"],
}
# Further names with patterns of the above.
SAME = {
    "glm4": "llama-bpe", "dbrx": "llama-bpe", "deepseek-r1-qwen": "qwen2", "llama4": "gpt-4o", "refact": "smollm",
    "starcoder": "smollm", "command-r": "smollm", "mpt": "gpt-2",
}
COMPOSES = {"qwen2", "qwen35", "command-r", "mpt"}  # have normalizer NFC
WHOLE_WORDS = {"llama-bpe", "glm4", "tekken"}       # ignore_merges

WORDS = """the quick Brown fox HTTPServer XMLHttpRequest iPhone McDonald getElementById snake_case CamelCaseWord don't
it's I'm YOU'RE they'Ve we'LL he'd O'Neill rock'n'roll éclair Straße ŒUVRE İstanbul ıssız ǅungla ǈubav Ωmega ΣΑΣ ŉ ſo 'ſ K'K
привет МИР Привет Ёлка ქართული ᲥართუᲚ हिन्दी কলকাতা தமிழ் ภาษาไทย العربية עִבְרִית 한국어 日本語 カタカナ ひらがな 中文字符 naïve cafe\u0301 a\u0308b
ª º ʰʷ Ʌʌ Ⅷ ⅷ ⓐⒶ ﬁne Ａｂｃ ＡＢＣ 𝐀𝐛 ℂℤ ʼn ʻokina""".split()
MARKS = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["...", "!!", "//", "/*", "*/", "://", "—", "…", "。", "，", "؟", "¿", "«", "»",
                                                       "€", "©", "→", "∑", "™", "🎉", "👩‍🚀", "\u00ad", "'s", "'S", "'LL", "’s"]
SPACES = [" ", " ", " ", "  ", "   ", "\t", "\n", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "\u00a0", "\u3000", "\u2028",
          "\x85", "\x0b", "\x0c", "\u200b", "\t\t", "    "]
NUMBERS = ["0", "7", "12", "123", "1234", "1234567", "3.14", "1,000", "٣", "५६", "½", "²", "Ⅳ", "①", "𝟗", "〇", "2024-01-02"]
ODD = ["\x00", "\x01", "\x1f", "\x7f", "\u0301", "\u093f", "\u20dd", "\ufe0f", "\ufeff", "\ufffd", "\ue000", "ー", "々", "\u3099",
       "\U000e0001", "\u0345", "\u05b7", "ꟸ", "ᵃ"]


def assigned(text):
    return "".join(c for c in text if unicodedata.category(c) not in ("Cn", "Cs"))


def random_texts(count, seed):
    """Texts of a few dozen characters, each a mixture of its own."""
    if unicodedata.unidata_version != "14.0.0":
        sys.exit("Run this with Python 3.11: it knows Unicode 14.0, and newer tables would let too much through.")
    rng = random.Random(seed)
    pools = [WORDS, MARKS, SPACES, NUMBERS, ODD, ["a", "B", "c", "D", "é", "É"]]
    letters = list(dict.fromkeys("".join(WORDS)))
    result = []
    while len(result) < count:
        weights = [rng.random() ** 2 for _ in range(len(pools) + 3)]
        parts = []
        for _ in range(rng.randint(1, 16)):
            kind = rng.choices(range(len(weights)), weights)[0]
            if kind < len(pools):
                parts.append(rng.choice(pools[kind]))
            elif kind == len(pools):
                parts.append(chr(rng.randrange(1, 0x110000 if rng.random() < 0.2 else 0x3000)))
            elif kind == len(pools) + 1:
                parts.append("".join(rng.choice(letters) for _ in range(rng.randint(1, 8))))
            else:
                parts.append(rng.choice(WORDS) + rng.choice([" ", "", "'s", ", ", ".\n", "/", "\n\n"]))
        text = assigned("".join(c for c in "".join(parts) if not "\ud800" <= c <= "\udfff"))
        if text:
            result.append(text)
    return result


def pretokenizer_json(name):
    """The pre_tokenizer of tokenizer.json that cuts as `name` does."""
    stages = [{"type": "Split", "pattern": {"Regex": r}, "behavior": "Isolated", "invert": False}
              for r in PATTERNS[SAME.get(name, name)]]
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [*stages, last]}
