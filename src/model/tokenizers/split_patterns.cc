// A new pattern of the GPT-2 family is a line in a table of its parts; a new name is a line in kNames.
#include "model/tokenizers/split_patterns.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "base/check.h"
#include "model/files/gguf.h"

namespace kvasir {

namespace {

using Contractions = WordStage::Contractions;
using Letters = WordStage::Letters;
using Tail = WordStage::Tail;

// Which characters the alternative for others leaves to the rest, as its text has to agree with that for
// letters.
enum class OthersFamily { kPlain, kMarks, kListed };

struct ContractionsPart {
  std::string_view text;
  Contractions value;
};
constexpr ContractionsPart kContractions[] = {
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|)", Contractions::kAny},
    {R"('(?i:[sdmt]|ll|ve|re)|)", Contractions::kAny},
    {R"('s|'t|'re|'ve|'m|'ll|'d|)", Contractions::kLower},
    {R"('(?:[sdmt]|ll|ve|re)|)", Contractions::kLower},
    {"", Contractions::kNone},
};

struct LettersPart {
  std::string_view text;
  Letters value;
  OthersFamily family = OthersFamily::kPlain;
  bool suffix = false;
};
#define KVASIR_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define KVASIR_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define KVASIR_LEAD R"([^\r\n\p{L}\p{N}]?)"
#define KVASIR_SUFFIX R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
constexpr LettersPart kLetters[] = {
    {R"( ?\p{L}+|)", Letters::kAfterSpace},
    {KVASIR_LEAD R"(\p{L}+|)", Letters::kAfterAny},
    {KVASIR_LEAD R"([\p{L}\p{M}]+|)", Letters::kAfterAny, OthersFamily::kMarks},
    {KVASIR_LEAD KVASIR_UPPER "*" KVASIR_LOWER "+|" KVASIR_LEAD KVASIR_UPPER "+" KVASIR_LOWER "*|",
     Letters::kCased},
    {KVASIR_LEAD KVASIR_UPPER "*" KVASIR_LOWER "+" KVASIR_SUFFIX "|" KVASIR_LEAD KVASIR_UPPER "+" KVASIR_LOWER
                              "*" KVASIR_SUFFIX "|",
     Letters::kCased, OthersFamily::kPlain, true},
    {R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)",
     Letters::kAfterMark, OthersFamily::kListed},
};
#undef KVASIR_UPPER
#undef KVASIR_LOWER
#undef KVASIR_LEAD
#undef KVASIR_SUFFIX

struct DigitsPart {
  std::string_view text;
  uint32_t value;
  bool after_space = false;
};
constexpr DigitsPart kDigits[] = {
    {R"(\p{N}{1,3}|)", 3},
    {R"(\p{N}{1}|)", 1},
    {R"(\p{N}|)", 1},
    {R"(\p{N}+|)", UINT32_MAX},
    {R"( ?\p{N}+|)", UINT32_MAX, true},
    {"", 0},
};

struct OthersPart {
  std::string_view text;
  Tail value;
  OthersFamily family = OthersFamily::kPlain;
};
constexpr OthersPart kOthers[] = {
    {R"( ?[^\s\p{L}\p{N}]+|)", Tail::kNone},
    {R"( ?[^\s\p{L}\p{N}]+[\r\n]*|)", Tail::kLineEnds},
    {R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|)", Tail::kLineEndsSlash},
    {R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)", Tail::kLineEnds, OthersFamily::kMarks},
    {R"( ?[\p{P}\p{S}]+[\r\n]*|)", Tail::kLineEnds, OthersFamily::kListed},
};

struct LineEndsPart {
  std::string_view text;
  bool value;
};
constexpr LineEndsPart kLineEnds[] = {
    {R"(\s*[\r\n]+|)", true},
    {R"(\s*[\r\n]|)", true},  // the first factor takes all line ends but the last
    {"", false},
};

struct RunPart {
  std::string_view text;
  RunStage stage;
};
constexpr std::string_view kNumbers = R"(\p{N}+)";
constexpr std::string_view kOneNumber = R"(\p{N})";
constexpr std::string_view kThreeNumbers = R"(\p{N}{1,3})";
constexpr std::string_view kThreeDigits = "[0-9][0-9][0-9]";
constexpr std::string_view kLineEnd = R"([\r\n])";
constexpr std::string_view kHanKana = "[一-龥\u3040-ゟ゠-ヿ]+";
constexpr std::string_view kHanHangul = "[一-龥ࠀ-一가-\ud7ff]+";
constexpr std::string_view kMarks = R"([\p{P}\$\+<=>\^~\|`]+)";
constexpr std::string_view kMarksNoBacktick = R"([\p{P}\$\+<=>\^~\|]+)";
constexpr std::string_view kSpacedLetters = R"(\s?\p{L}+)";
constexpr std::string_view kSpacedMarks = R"(\s?\p{P}+)";
// The set goes on for some hundred characters; no other tokenizer begins so.
constexpr std::string_view kListedLetters = R"(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿ)";
constexpr std::string_view kListedSymbols = R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)";
constexpr std::string_view kTrailingSpace = R"(\s+$)";
constexpr std::string_view kBloom = R"( ?[^(\s|.,!?…。，、।۔،)]+)";
constexpr std::string_view kLines = R"([^\n]+|[\n]+)";

constexpr uint32_t kMany = UINT32_MAX;
constexpr RunPart kRuns[] = {
    {kNumbers, {CharSet::kNumber}},
    {kOneNumber, {CharSet::kNumber, 1, 1}},
    {kThreeNumbers, {CharSet::kNumber, 1, 3}},
    {kThreeDigits, {CharSet::kAsciiDigit, 3, 3}},
    {kLineEnd, {CharSet::kLineEnd, 1, 1}},
    {kHanKana, {CharSet::kHanKana}},
    {kHanHangul, {CharSet::kHanHangul}},
    {kMarks, {CharSet::kAnyPunctuation}},
    {kMarksNoBacktick, {CharSet::kNoBacktick}},
    {kSpacedLetters, {CharSet::kLetter, 1, kMany, RunStage::Lead::kWhite}},
    {kSpacedMarks, {CharSet::kPunctuation, 1, kMany, RunStage::Lead::kWhite}},
    {kListedSymbols, {CharSet::kDeepseekSymbol, 1, kMany, RunStage::Lead::kWhite}},
    {kTrailingSpace, {CharSet::kSpace, 1, kMany, RunStage::Lead::kNone, true}},
    {kBloom, {CharSet::kNoBloomBreak, 1, kMany, RunStage::Lead::kSpace}},
    {kLines, {CharSet::kNewline}},
};

// The longest of `parts` that `text` begins with (an empty one always fits), which is taken off; null if
// none.
template <typename Part, size_t kCount>
const Part* take_part(const Part (&parts)[kCount], std::string_view* text) {
  const Part* best = nullptr;
  for (const Part& part : parts) {
    if (text->starts_with(part.text) && (best == nullptr || part.text.size() > best->text.size()))
      best = &part;
  }
  if (best != nullptr) text->remove_prefix(best->text.size());
  return best;
}

// One spelling of what can be written in several ways. A possessive quantifier means the same in these
// patterns.
std::string normalise(std::string_view regex) {
  std::string out;
  for (const char c : regex) {
    if (c == '\r' || c == '\n') {
      out += c == '\r' ? "\\r" : "\\n";
    } else if (c != '+' || out.empty() || (out.back() != '?' && out.back() != '+')) {
      out += c;
    }
  }
  return out;
}

std::optional<SplitStage> parse_words(std::string_view rest) {
  const ContractionsPart* contractions = take_part(kContractions, &rest);
  const LettersPart* letters = take_part(kLetters, &rest);
  const DigitsPart* digits = take_part(kDigits, &rest);
  const OthersPart* others = take_part(kOthers, &rest);
  const LineEndsPart* line_ends = take_part(kLineEnds, &rest);
  if (letters == nullptr || others == nullptr || letters->family != others->family) return std::nullopt;
  if (letters->suffix && contractions->value != Contractions::kNone) return std::nullopt;
  if (rest != R"(\s+(?!\S)|\s+)") return std::nullopt;
  WordStage stage;
  stage.contractions = letters->suffix ? Contractions::kSuffix : contractions->value;
  stage.letters = letters->value;
  stage.marks_join = letters->family == OthersFamily::kMarks;
  stage.digits = digits->value;
  stage.digits_after_space = digits->after_space;
  stage.tail = others->value;
  stage.line_ends = line_ends->value;
  return stage;
}

#define KVASIR_GPT2 R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"
#define KVASIR_ANY_CASE R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|)"
#define KVASIR_END R"(\s*[\r\n]+|\s+(?!\S)|\s+)"
#define KVASIR_WORDS R"([^\r\n\p{L}\p{N}]?\p{L}+|)"
#define KVASIR_OTHERS R"( ?[^\s\p{L}\p{N}]+[\r\n]*|)"
#define KVASIR_UPPER R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define KVASIR_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define KVASIR_SUFFIX R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
#define KVASIR_SLASH_OTHERS R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|)"
constexpr std::string_view kGpt2 = KVASIR_GPT2;
constexpr std::string_view kLlama3 = KVASIR_ANY_CASE KVASIR_WORDS R"(\p{N}{1,3}|)" KVASIR_OTHERS KVASIR_END;
constexpr std::string_view kQwen2 = KVASIR_ANY_CASE KVASIR_WORDS R"(\p{N}|)" KVASIR_OTHERS KVASIR_END;
constexpr std::string_view kMinicpm5 = KVASIR_ANY_CASE KVASIR_WORDS R"(\p{N}+|)" KVASIR_OTHERS KVASIR_END;
constexpr std::string_view kUfakzeka = KVASIR_WORDS R"(\p{N}|)" KVASIR_OTHERS KVASIR_END;
constexpr std::string_view kQwen35 =
    KVASIR_ANY_CASE R"([^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)" KVASIR_END;
constexpr std::string_view kGpt4o =
    KVASIR_UPPER "*" KVASIR_LOWER "+" KVASIR_SUFFIX KVASIR_UPPER "+" KVASIR_LOWER "*" KVASIR_SUFFIX
                 R"(\p{N}{1,3}|)" KVASIR_SLASH_OTHERS KVASIR_END;
constexpr std::string_view kTekken = KVASIR_UPPER "*" KVASIR_LOWER "+|" KVASIR_UPPER "+" KVASIR_LOWER
                                                  R"(*|\p{N}|)" KVASIR_SLASH_OTHERS KVASIR_END;
constexpr std::string_view kDeepseek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)" KVASIR_END;
#undef KVASIR_GPT2
#undef KVASIR_ANY_CASE
#undef KVASIR_END
#undef KVASIR_WORDS
#undef KVASIR_OTHERS
#undef KVASIR_UPPER
#undef KVASIR_LOWER
#undef KVASIR_SUFFIX
#undef KVASIR_SLASH_OTHERS

constexpr std::string_view kGpt2Only[] = {kGpt2};
constexpr std::string_view kDigitsThenGpt2[] = {kOneNumber, kGpt2};
constexpr std::string_view kLlama3Only[] = {kLlama3};
constexpr std::string_view kQwen2Only[] = {kQwen2};
constexpr std::string_view kUfakzekaOnly[] = {kUfakzeka};
constexpr std::string_view kMinicpm5Both[] = {kThreeNumbers, kMinicpm5};
constexpr std::string_view kLaguna[] = {kLines, kQwen2};
constexpr std::string_view kQwen35Only[] = {kQwen35};
constexpr std::string_view kGpt4oOnly[] = {kGpt4o};
constexpr std::string_view kTekkenOnly[] = {kTekken};
constexpr std::string_view kDeepseek3All[] = {kThreeNumbers, kHanKana, kDeepseek3};
constexpr std::string_view kDeepseekLlm[] = {kLineEnd,       kListedLetters, kListedSymbols,
                                             kTrailingSpace, kHanHangul,     kNumbers};
constexpr std::string_view kDeepseekCoder[] = {kLineEnd, kSpacedLetters, kSpacedMarks, kHanHangul,
                                               kOneNumber};
constexpr std::string_view kFalcon[] = {kMarks, kGpt2, kThreeDigits};
constexpr std::string_view kDefault[] = {kMarksNoBacktick, kGpt2, kNumbers, kThreeDigits};
constexpr std::string_view kBloomOnly[] = {kBloom};
constexpr std::string_view kViking[] = {kBloom, kOneNumber};

struct Name {
  std::string_view name;
  const std::string_view* begin;
  size_t size;
  bool ignore_merges = false;
  bool nfc = false;
  bool add_bos = false;

  template <size_t kCount>
  constexpr Name(std::string_view its_name, const std::string_view (&patterns)[kCount], bool whole = false,
                 bool composed = false, bool bos = false)
      : name(its_name), begin(patterns), size(kCount), ignore_merges(whole), nfc(composed), add_bos(bos) {}
};
constexpr bool kWhole = true;
constexpr bool kNfc = true;
constexpr bool kBos = true;
constexpr Name kNames[] = {
    {"default", kDefault},
    {"gpt-2", kGpt2Only},
    {"phi-2", kGpt2Only},
    {"gigachat", kGpt2Only},
    {"exaone4", kGpt2Only},
    {"trillion", kGpt2Only},
    {"jais", kGpt2Only},
    {"mellum", kGpt2Only},
    {"mpt", kGpt2Only, false, kNfc},
    {"olmo", kGpt2Only, false, kNfc},
    {"smollm", kDigitsThenGpt2},
    {"refact", kDigitsThenGpt2},
    {"starcoder", kDigitsThenGpt2},
    {"codeshell", kDigitsThenGpt2},
    {"exaone", kDigitsThenGpt2},
    {"minerva-7b", kDigitsThenGpt2},
    {"mellum2", kDigitsThenGpt2},
    {"command-r", kDigitsThenGpt2, false, kNfc},
    {"llama-bpe", kLlama3Only, kWhole, false, kBos},
    {"llama3", kLlama3Only, kWhole, false, kBos},
    {"llama-v3", kLlama3Only, kWhole, false, kBos},
    {"falcon3", kLlama3Only, kWhole, false, kBos},
    {"falcon-h1", kLlama3Only, kWhole, false, kBos},
    {"pixtral", kLlama3Only, kWhole, false, kBos},
    {"lfm2", kLlama3Only, kWhole, false, kBos},
    {"glm4", kLlama3Only, kWhole},
    {"glm5", kLlama3Only, kWhole},
    {"chatglm-bpe", kLlama3Only},
    {"dbrx", kLlama3Only},
    {"smaug-bpe", kLlama3Only},
    {"minicpm5", kMinicpm5Both, kWhole},
    {"ufakzeka", kUfakzekaOnly},
    {"laguna", kLaguna},
    {"qwen2", kQwen2Only, false, kNfc},
    {"deepseek-r1-qwen", kQwen2Only},
    {"megrez", kQwen2Only},
    {"stablelm2", kQwen2Only},
    {"hunyuan", kQwen2Only},
    {"solar-open", kQwen2Only},
    {"grok-2", kQwen2Only},
    {"bailingmoe", kQwen2Only},
    {"bailingmoe2", kQwen2Only},
    {"llada-moe", kQwen2Only},
    {"qwen35", kQwen35Only, false, kNfc},
    {"gpt-4o", kGpt4oOnly},
    {"llama4", kGpt4oOnly},
    {"kanana2", kGpt4oOnly},
    {"minimax-m2", kGpt4oOnly},
    {"tekken", kTekkenOnly, kWhole, false, kBos},
    {"deepseek-v3", kDeepseek3All},
    {"hunyuan-dense", kDeepseek3All},
    {"joyai-llm", kDeepseek3All},
    {"deepseek-llm", kDeepseekLlm},
    {"deepseek-coder", kDeepseekCoder},
    {"falcon", kFalcon},
    {"bloom", kBloomOnly},
    {"poro-chat", kBloomOnly},
    {"gpt3-finnish", kBloomOnly},
    {"viking", kViking},
};

}  // namespace

std::optional<SplitStage> parse_split_pattern(std::string_view regex) {
  const std::string text = normalise(regex);
  const auto run =
      std::find_if(std::begin(kRuns), std::end(kRuns), [&](const RunPart& r) { return r.text == text; });
  if (run != std::end(kRuns)) return run->stage;
  if (text.starts_with(kListedLetters)) {
    return RunStage{CharSet::kDeepseekLetter, 1, kMany, RunStage::Lead::kWhite};
  }
  return parse_words(text);
}

SplitRules gpt2_split() {
  return {WordStage{}};
}

std::string_view name_of_pretokenizer(const SplitRules& split, bool ignore_merges, bool nfc) {
  for (const Name& name : kNames) {
    if (name.ignore_merges != ignore_merges || name.nfc != nfc) continue;
    const Result<Pretokenizer> rules = find_pretokenizer(name.name);
    if (rules.ok() && rules->split == split) return name.name;
  }
  return {};
}

Result<Pretokenizer> find_pretokenizer(std::string_view name) {
  const auto found =
      std::find_if(std::begin(kNames), std::end(kNames), [&](const Name& n) { return n.name == name; });
  if (found == std::end(kNames)) {
    return error(ErrorCode::kUnsupported,
                 "pre-tokenizer {} is not supported; use a model whose tokenizer.ggml.pre is one of those in "
                 "docs/models.md, such as llama-bpe, qwen2 or gpt-2",
                 gguf_quoted(name));
  }
  Pretokenizer out;
  for (size_t i = 0; i < found->size; ++i) {
    const auto stage = parse_split_pattern(found->begin[i]);
    KV_CHECK(stage.has_value(), "pattern {} of {}", i, name);
    out.split.push_back(*stage);
  }
  out.ignore_merges = found->ignore_merges;
  out.nfc = found->nfc;
  out.add_bos = found->add_bos;
  return out;
}

}  // namespace kvasir
