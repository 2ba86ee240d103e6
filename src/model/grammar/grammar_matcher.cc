#include "model/grammar/grammar_matcher.h"

#include <dlpack/dlpack.h>
#include <support/logging.h>
#include <time.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"

// ---------------------------------------------------------------- what the library says

namespace kvasir {
namespace {

// Where warnings of the library on this thread go. It has one hook for all threads and grammars.
std::vector<std::string>*& warnings_of_thread() {
  static thread_local std::vector<std::string>* warnings = nullptr;
  return warnings;
}

// While it exists, they go to `to`.
class WarningsTo {
 public:
  explicit WarningsTo(std::vector<std::string>& to) : before_(std::exchange(warnings_of_thread(), &to)) {}
  ~WarningsTo() { warnings_of_thread() = before_; }
  WarningsTo(const WarningsTo&) = delete;
  WarningsTo& operator=(const WarningsTo&) = delete;

 private:
  std::vector<std::string>* const before_;
};

}  // namespace
}  // namespace kvasir

namespace xgrammar {

void LogFatalImpl(const std::string& file, int line, const std::string& message) {
  throw LogFatalError(file, line, message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  if (level != XGRAMMAR_LOG_LEVEL_WARNING) return;
  if (auto* warnings = kvasir::warnings_of_thread()) {
    warnings->push_back(message);
  } else {
    kvasir::log_warning("grammar: {}", message);
  }
}

}  // namespace xgrammar

namespace kvasir {
namespace {

std::string in_one_line(std::string text) {
  constexpr size_t kLongest = 300;  // bytes
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

// What an exception says, without the library's condition and place in its source.
std::string words_of(const std::exception& e) {
  std::string text = e.what();
  if (const auto* fatal = dynamic_cast<const xgrammar::LogFatalError*>(&e)) {
    text = fatal->std::runtime_error::what();
  }
  constexpr std::string_view kCondition = "is false: ";
  if (const size_t at = text.find(kCondition); text.starts_with("Check failed") && at != std::string::npos) {
    text = text.substr(at + kCondition.size());
  }
  return in_one_line(std::move(text));
}

// A string of EBNF.
std::string ebnf_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string one_of(const std::vector<std::string>& choices) {
  std::string out = "root ::= ";
  for (size_t i = 0; i < choices.size(); ++i) out += (i == 0 ? "" : " | ") + ebnf_string(choices[i]);
  return out;
}

xgrammar::TokenizerInfo describe(const Tokenizer& tokenizer) {
  std::vector<std::string> bytes;
  bytes.reserve(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    // A token without bytes is in no output.
    const bool in_output = !tokenizer.is_special(id) && !tokenizer.is_end(id);
    bytes.emplace_back(in_output ? *tokenizer.token_bytes(id) : std::string_view());
  }
  const std::span<const int32_t> ends = tokenizer.ends();
  KV_CHECK(!ends.empty(), "no token ends an output");
  return {bytes, xgrammar::VocabType::RAW, tokenizer.vocab_size(),
          std::vector<int32_t>(ends.begin(), ends.end())};
}

// The tokens that texts of JSON are made of. The library lets control characters into strings whose length is
// bounded, where JSON has none. Without them there is still a line feed to put between values.
std::shared_ptr<const TokenMask> tokens_of_json(const Tokenizer& tokenizer) {
  auto mask = std::make_shared<TokenMask>();
  mask->words.resize((static_cast<size_t>(tokenizer.vocab_size()) + 31) / 32);
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 && c != '\n'; };
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view bytes = *tokenizer.token_bytes(id);
    if (std::any_of(bytes.begin(), bytes.end(), is_control)) continue;
    mask->words[static_cast<size_t>(id) / 32] |= uint32_t{1} << (static_cast<uint32_t>(id) % 32);
  }
  return mask;
}

}  // namespace

Nanos busy_time() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return Nanos{t.tv_sec} * kNanosPerSecond + t.tv_nsec;
}

// ---------------------------------------------------------------- grammars

struct CompiledGrammar::Impl {
  xgrammar::CompiledGrammar grammar;
  std::shared_ptr<const TokenMask> only;  // null: any token that the grammar allows
  TokenMask first;
  Nanos first_time = 0;
};

size_t CompiledGrammar::bytes() const {
  return impl_->grammar.MemorySizeBytes();
}

const TokenMask& CompiledGrammar::first_mask() const {
  return impl_->first;
}

Nanos CompiledGrammar::first_mask_time() const {
  return impl_->first_time;
}

struct GrammarVocabulary::Impl {
  // Runs on the calling thread alone. Without a cache: the library's keeps the texts of what failed for ever,
  // and tells of what it leaves out only once.
  explicit Impl(const Tokenizer& tokenizer)
      : compiler(describe(tokenizer), /*max_threads=*/1, /*cache_enabled=*/false),
        of_json(tokens_of_json(tokenizer)) {}

  xgrammar::CompiledGrammar compile(const OutputGrammar& g) {
    using Kind = OutputGrammar::Kind;
    switch (g.kind) {
      case Kind::kJson:
        return compile_schema(R"({"type":"object","additionalProperties":true})");
      case Kind::kJsonSchema:
        return compile_schema(g.text);
      case Kind::kRegex:
        return compiler.CompileRegex(g.text);
      case Kind::kChoice:
        return compiler.CompileGrammar(one_of(g.choices));
      case Kind::kGrammar:
        return compiler.CompileGrammar(g.text);
      case Kind::kStructuralTag:
        return compiler.CompileStructuralTag(g.text);
      case Kind::kNone:
        break;
    }
    KV_CHECK(false, "there is no grammar");
    return xgrammar::CompiledGrammar(xgrammar::NullObj());
  }

  // A small model that may put any white space between two values puts it there for ever.
  static constexpr int kMostSpaces = 8;
  xgrammar::CompiledGrammar compile_schema(const std::string& schema) {
    return compiler.CompileJSONSchema(schema, /*any_whitespace=*/true, std::nullopt, std::nullopt,
                                      /*strict_mode=*/true, kMostSpaces);
  }

  xgrammar::GrammarCompiler compiler;
  const std::shared_ptr<const TokenMask> of_json;
};

GrammarVocabulary::GrammarVocabulary(const Tokenizer& tokenizer) : impl_(std::make_unique<Impl>(tokenizer)) {}

GrammarVocabulary::~GrammarVocabulary() = default;

Result<CompiledGrammar> GrammarVocabulary::compile(const OutputGrammar& grammar) const {
  std::vector<std::string> warnings;
  std::shared_ptr<CompiledGrammar::Impl> compiled;
  try {
    const WarningsTo to(warnings);
    using Kind = OutputGrammar::Kind;
    const bool json = grammar.kind == Kind::kJson || grammar.kind == Kind::kJsonSchema;
    compiled = std::make_shared<CompiledGrammar::Impl>(
        CompiledGrammar::Impl{impl_->compile(grammar), json ? impl_->of_json : nullptr, {}});
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return error(ErrorCode::kInvalidArgument, "{}", words_of(e));
  }
  for (const std::string& warning : warnings) {
    // SchemaHold has found more alternatives to exclude each other than the library does.
    if (warning.find("oneOf") != std::string::npos) continue;
    return error(ErrorCode::kInvalidArgument, "{}", in_one_line(warning));
  }
  const Nanos begin = busy_time();
  try {
    GrammarMatcher matcher((CompiledGrammar(compiled)));
    matcher.mask(compiled->first);
    if (!matcher.faults().empty()) {
      return error(ErrorCode::kInvalidArgument, "{}", in_one_line(matcher.faults().front()));
    }
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return error(ErrorCode::kInvalidArgument, "{}", words_of(e));
  }
  compiled->first_time = busy_time() - begin;
  return CompiledGrammar(std::move(compiled));
}

// ---------------------------------------------------------------- outputs

struct GrammarMatcher::Impl {
  explicit Impl(CompiledGrammar g) : grammar(std::move(g)), matcher(grammar.impl().grammar) {}

  bool accept(Token token) {
    if (matcher.IsTerminated()) return false;
    try {
      return matcher.AcceptToken(token);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& e) {
      faults.push_back(fmt::format("token {} was not accepted: {}", token, words_of(e)));
      return false;
    }
  }

  const CompiledGrammar grammar;
  xgrammar::GrammarMatcher matcher;
  std::vector<Token> accepted;
  std::vector<std::string> faults;
  bool lost = false;  // the output is not allowed
};

GrammarMatcher::GrammarMatcher(CompiledGrammar grammar) : impl_(std::make_unique<Impl>(std::move(grammar))) {}

GrammarMatcher::~GrammarMatcher() = default;

void GrammarMatcher::start_anew() {
  impl_ = std::make_unique<Impl>(impl_->grammar);
}

std::span<const std::string> GrammarMatcher::faults() const {
  return impl_->faults;
}

bool GrammarMatcher::follow(std::span<const Token> output) {
  impl_->faults.clear();
  const WarningsTo to(impl_->faults);
  std::vector<Token>& accepted = impl_->accepted;
  const auto same = static_cast<size_t>(
      std::mismatch(accepted.begin(), accepted.end(), output.begin(), output.end()).first - accepted.begin());
  if (same < accepted.size()) {
    impl_->matcher.Rollback(static_cast<int>(accepted.size() - same));
    accepted.resize(same);
  }
  impl_->lost = false;
  for (size_t i = same; i < output.size() && !impl_->lost; ++i) {
    impl_->lost = !impl_->accept(output[i]);
    if (!impl_->lost) accepted.push_back(output[i]);
  }
  return !impl_->lost;
}

void GrammarMatcher::mask(TokenMask& out) {
  const WarningsTo to(impl_->faults);
  const xgrammar::TokenizerInfo vocabulary = impl_->grammar.impl().grammar.GetTokenizerInfo();
  const int vocab = vocabulary.GetVocabSize();
  out.words.assign(static_cast<size_t>(xgrammar::GetBitmaskSize(vocab)), 0);
  if (!impl_->lost && !impl_->matcher.IsTerminated()) {
    auto words = static_cast<int64_t>(out.words.size());
    DLTensor tensor{};
    tensor.data = out.words.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = xgrammar::GetBitmaskDLType();
    tensor.shape = &words;
    try {
      impl_->matcher.FillNextTokenBitmask(&tensor);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& e) {
      impl_->faults.push_back(fmt::format("no mask could be made: {}", words_of(e)));
      std::fill(out.words.begin(), out.words.end(), 0);
    }
  }
  if (const TokenMask* only = impl_->grammar.impl().only.get()) {
    for (size_t w = 0; w < out.words.size(); ++w) out.words[w] &= only->words[w];
  }
  const auto has_bits = [](uint32_t word) { return word != 0; };
  if (std::any_of(out.words.begin(), out.words.end(), has_bits)) return;
  for (const int32_t end : vocabulary.GetStopTokenIds()) {
    out.words[static_cast<size_t>(end) / 32] |= uint32_t{1} << (static_cast<uint32_t>(end) % 32);
  }
}

}  // namespace kvasir
