// What the files say is collected part by part; a part that is not known refuses them, since it would make
// other tokens. The JSON library's exceptions are caught in read_tokenizer_json().
#include "model/tokenizers/tokenizer_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/untrusted_text.h"
#include "model/files/gguf.h"
#include "model/files/json_text.h"
#include "model/tokenizers/split_patterns.h"

namespace kvasir {

namespace {

using nlohmann::json;

constexpr const char* kMark = "\u2581";
constexpr size_t kShown = 400;  // characters of a file that a message shows: a pattern is no longer

// The JSON in `text`. Its exceptions are the library's.
json parse(std::string_view text) {
  if (nests_deeper(text, kMostJsonDepth)) {
    throw json::other_error::create(501, fmt::format("nested deeper than {}", kMostJsonDepth), nullptr);
  }
  return json::parse(text);
}

// The id of a token.
int64_t id_in(const json& value) {
  const bool fits = !value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX;
  if (value.is_number_integer() && fits) return value.get<int64_t>();
  throw json::other_error::create(501, fmt::format("a token has the id {}", shown_json(value)), &value);
}

// A member, or null where it is absent.
const json& member(const json& object, const char* key) {
  static const json kNone;
  const auto found = object.find(key);
  return found == object.end() ? kNone : *found;
}

bool flag(const json& object, const char* key, bool missing = false) {
  const json& value = member(object, key);
  return value.is_null() ? missing : value.get<bool>();
}

std::string type_of(const json& object) {
  return member(object, "type").is_null() ? std::string("(none)") : object.at("type").get<std::string>();
}

// A component and, if it is a Sequence, those in it, in order.
std::vector<const json*> flatten(const json& component, const char* list) {
  if (component.is_null()) return {};
  if (type_of(component) != "Sequence") return {&component};
  std::vector<const json*> out;
  for (const json& part : component.at(list)) {
    if (type_of(part) == "Sequence")
      throw json::other_error::create(501, "a Sequence within a Sequence", &part);
    out.push_back(&part);
  }
  return out;
}

// A token as configurations write it: its text, or an object with it.
std::optional<std::string> token_text(const json& value) {
  if (value.is_null()) return std::nullopt;
  return value.is_object() ? value.at("content").get<std::string>() : value.get<std::string>();
}

class Reader {
 public:
  Reader(const TokenizerFiles& files, std::string_view origin) : files_(files), origin_(origin) {}
  Result<TokenizerData> run();

 private:
  Status read_tokenizer(const json& root);
  Status read_plain_vocabulary(const json& config);
  Status read_model(const json& model);
  Status read_vocabulary(const json& vocab);
  Status read_added(const json& added, int64_t id);
  Status read_normalizer(const json& component);
  Status read_pretokenizer(const json& component);
  Status read_split(const json& split);
  void read_metaspace(const json& metaspace);
  void read_post_processor(const json& component);
  Status finish_model();
  Status set_token(int64_t id, const std::string& text, TokenType type);
  void read_config(const json& config);
  void read_chat_template(const json& config);
  Status read_ends(const json& generation);
  std::optional<int32_t> id_of(const std::optional<std::string>& text) const;

  Status unsupported(std::string_view what) const {
    return error(ErrorCode::kUnsupported, "{}: the tokenizer has {}, which is not supported", origin_, what);
  }
  Status corrupt(std::string_view what) const {
    return error(ErrorCode::kCorrupt, "{}: {}; the files are damaged", origin_, what);
  }

  const TokenizerFiles& files_;
  const std::string_view origin_;
  TokenizerData data_;
  std::unordered_map<std::string, int32_t> ids_;
  int64_t most_tokens_ = 0;
  bool byte_level_ = false;
  bool marks_spaces_ = false;
  bool byte_fallback_ = false;
};

Result<TokenizerData> Reader::run() {
  data_.split.clear();
  const json config = files_.tokenizer_config.empty() ? json::object() : parse(files_.tokenizer_config);
  if (!files_.tokenizer.empty()) {
    KV_RETURN_IF_ERROR(read_tokenizer(parse(files_.tokenizer)));
  } else if (!files_.vocab.empty() && !files_.merges.empty()) {
    KV_RETURN_IF_ERROR(read_plain_vocabulary(config));
  } else {
    return error(ErrorCode::kNotFound, "{}: there is neither tokenizer.json nor vocab.json with merges.txt",
                 origin_);
  }
  read_config(config);
  if (!files_.generation_config.empty()) KV_RETURN_IF_ERROR(read_ends(parse(files_.generation_config)));
  return std::move(data_);
}

Status Reader::read_tokenizer(const json& root) {
  const json& added = member(root, "added_tokens");
  most_tokens_ = static_cast<int64_t>(added.size());
  KV_RETURN_IF_ERROR(read_model(root.at("model")));
  for (const json& token : added) KV_RETURN_IF_ERROR(read_added(token, id_in(token.at("id"))));
  for (const json* part : flatten(member(root, "normalizer"), "normalizers")) {
    KV_RETURN_IF_ERROR(read_normalizer(*part));
  }
  for (const json* part : flatten(member(root, "pre_tokenizer"), "pretokenizers")) {
    KV_RETURN_IF_ERROR(read_pretokenizer(*part));
  }
  for (const json* part : flatten(member(root, "post_processor"), "processors")) read_post_processor(*part);
  return finish_model();
}

Status Reader::read_model(const json& model) {
  const json& type = member(model, "type");
  // Early files do not name the type.
  if (!(type.is_null() ? model.contains("merges") : type.get<std::string>() == "BPE")) {
    return unsupported("a model of type " + gguf_quoted(type_of(model)) + " (BPE is supported)");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json& affix = member(model, key);
    if (!affix.is_null() && !affix.get<std::string>().empty()) return unsupported(std::string("a ") + key);
  }
  if (!member(model, "dropout").is_null() && model.at("dropout").get<double>() != 0)
    return unsupported("dropout");
  byte_fallback_ = flag(model, "byte_fallback");
  data_.ignore_merges = flag(model, "ignore_merges");
  data_.fuse_unknown = flag(model, "fuse_unk");
  KV_RETURN_IF_ERROR(read_vocabulary(model.at("vocab")));
  data_.unk = id_of(token_text(member(model, "unk_token")));
  for (const json& merge : model.at("merges")) {
    if (merge.is_string()) {
      data_.merges.push_back(merge.get<std::string>());
    } else {
      data_.merges.push_back(merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>());
    }
  }
  return Status();
}

Status Reader::read_vocabulary(const json& vocab) {
  if (!vocab.is_object()) return corrupt("the vocabulary is no JSON object");
  constexpr int64_t kMostHoles = 1 << 16;
  most_tokens_ += static_cast<int64_t>(vocab.size()) + kMostHoles;
  for (const auto& [text, id] : vocab.items()) {
    KV_RETURN_IF_ERROR(set_token(id_in(id), text, TokenType::kNormal));
  }
  return Status();
}

// Ids may have holes, but not so large ones that a hostile file could ask for any memory.
Status Reader::set_token(int64_t id, const std::string& text, TokenType type) {
  if (id < 0 || id >= most_tokens_)
    return corrupt(fmt::format("token {} has the id {}", gguf_quoted(text), id));
  const auto i = static_cast<size_t>(id);
  if (i >= data_.tokens.size()) {
    data_.tokens.resize(i + 1);
    data_.token_types.resize(i + 1, static_cast<int32_t>(TokenType::kUnused));
  }
  const auto unused = static_cast<int32_t>(TokenType::kUnused);
  if (data_.token_types[i] != unused && data_.tokens[i] != text) {
    return corrupt(fmt::format("the id {} is that of {} and of {}", id, gguf_quoted(data_.tokens[i]),
                               gguf_quoted(text)));
  }
  data_.tokens[i] = text;
  data_.token_types[i] = static_cast<int32_t>(type);
  ids_.emplace(text, static_cast<int32_t>(id));
  return Status();
}

Status Reader::read_added(const json& added, int64_t number) {
  const std::string text = added.at("content").get<std::string>();
  if (flag(added, "single_word"))
    return unsupported("the added token " + gguf_quoted(text) + " as a word of its own only");
  KV_RETURN_IF_ERROR(
      set_token(number, text, flag(added, "special") ? TokenType::kControl : TokenType::kUserDefined));
  const auto id = static_cast<int32_t>(number);
  if (flag(added, "lstrip")) data_.strips_left.push_back(id);
  if (flag(added, "rstrip")) data_.strips_right.push_back(id);
  return Status();
}

Status Reader::read_normalizer(const json& part) {
  const std::string type = type_of(part);
  if (type == "NFC") {
    data_.nfc = true;
  } else if (type == "Prepend" && part.at("prepend") == kMark) {
    data_.space_prefix = SpacePrefix::kAlways;
  } else if (type == "Replace" && member(part.at("pattern"), "String") == " " &&
             part.at("content") == kMark) {
    marks_spaces_ = true;
  } else {
    return unsupported("the normalizer " + shown_json(part));
  }
  return Status();
}

Status Reader::read_pretokenizer(const json& part) {
  const std::string type = type_of(part);
  if (type == "Split") return read_split(part);
  if (type == "ByteLevel" && !byte_level_ && !flag(part, "add_prefix_space", true)) {
    byte_level_ = true;
    if (flag(part, "use_regex", true)) data_.split.push_back(gpt2_split().front());
  } else if (type == "Digits" && !byte_level_) {
    data_.split.push_back(RunStage{CharSet::kNumber, 1, flag(part, "individual_digits") ? 1 : UINT32_MAX});
  } else if (type == "Punctuation" && !byte_level_ && member(part, "behavior") == "Contiguous") {
    data_.split.push_back(RunStage{CharSet::kAnyPunctuation});
  } else if (type == "Metaspace" && member(part, "replacement") == kMark && !flag(part, "split", true)) {
    read_metaspace(part);
  } else {
    return unsupported("the pre-tokenizer " + shown_json(part));
  }
  return Status();
}

Status Reader::read_split(const json& split) {
  const json& regex = member(split.at("pattern"), "Regex");
  const std::string behavior = split.at("behavior").get<std::string>();
  const bool invert = flag(split, "invert");
  if (regex.is_null()) {
    // Of spaces, where there are none left.
    if (marks_spaces_ && member(split.at("pattern"), "String") == " " && !invert && behavior != "Removed")
      return Status();
    return unsupported("the pre-tokenizer " + shown_json(split));
  }
  const auto stage = parse_split_pattern(regex.get<std::string>());
  // Words that cover the text may as well be kept and what is between them removed.
  const auto* words = stage ? std::get_if<WordStage>(&*stage) : nullptr;
  const bool covers =
      words != nullptr && words->letters != WordStage::Letters::kAfterMark && words->digits > 0;
  const bool isolates = (behavior == "Isolated" && !invert) || (covers && behavior == "Removed" && invert);
  // What ByteLevel leaves is spelled in its alphabet, in which only ASCII is as it was.
  const auto* runs = stage ? std::get_if<RunStage>(&*stage) : nullptr;
  const bool too_late = byte_level_ && (runs == nullptr || runs->set != CharSet::kAsciiDigit);
  if (!stage || !isolates || too_late) {
    return unsupported(fmt::format("the splitting pattern {} ({}{}{})", shown_json(regex, kShown),
                                   one_line(behavior, 40), invert ? ", inverted" : "",
                                   too_late ? ", after ByteLevel" : ""));
  }
  data_.split.push_back(*stage);
  return Status();
}

void Reader::read_metaspace(const json& metaspace) {
  marks_spaces_ = true;
  const json& scheme = member(metaspace, "prepend_scheme");
  if (scheme.is_null() ? flag(metaspace, "add_prefix_space", true) : scheme == "always") {
    data_.space_prefix = SpacePrefix::kUnlessThere;
  } else if (scheme == "first") {
    data_.space_prefix = SpacePrefix::kFirst;
  }
}

// A template that begins, or ends, with a special token says that texts do.
void Reader::read_post_processor(const json& part) {
  if (type_of(part) != "TemplateProcessing") return;
  const json& single = part.at("single");
  if (single.empty()) return;
  const json& last = member(single.back(), "SpecialToken");
  if (single.size() > 1 && !last.is_null()) data_.closing = id_of(last.at("id").get<std::string>());
  const json& first = member(single.at(0), "SpecialToken");
  if (first.is_null()) return;
  data_.bos = id_of(first.at("id").get<std::string>());
  data_.add_bos = data_.bos.has_value();
}

Status Reader::finish_model() {
  data_.model = byte_level_ ? TokenizerModel::kByteBpe : TokenizerModel::kTextBpe;
  if (byte_level_ == marks_spaces_) {
    return unsupported(byte_level_ ? "both bytes and U+2581 for spaces"
                                   : "neither bytes nor U+2581 for spaces");
  }
  if (!byte_level_ && byte_fallback_) {
    for (int byte = 0; byte < 256; ++byte) {
      const auto id = id_of(fmt::format("<0x{:02X}>", byte));
      if (id) data_.token_types[static_cast<size_t>(*id)] = static_cast<int32_t>(TokenType::kByte);
    }
  }
  return Status();
}

// GPT-2's files, which do not say how text is split: the class that reads them does.
Status Reader::read_plain_vocabulary(const json& config) {
  const json& named = member(config, "tokenizer_class");
  const std::string reader = named.is_null() ? "GPT2Tokenizer" : named.get<std::string>();
  if (reader.starts_with("Qwen2Tokenizer")) {
    KV_ASSIGN_OR_RETURN(Pretokenizer qwen2, find_pretokenizer("qwen2"));
    data_.split = std::move(qwen2.split);
    data_.nfc = qwen2.nfc;
  } else if (reader.starts_with("GPT2Tokenizer") || reader.starts_with("CodeGenTokenizer")) {
    data_.split = gpt2_split();
  } else {
    return unsupported("the class " + gguf_quoted(reader) + " and no tokenizer.json");
  }
  KV_RETURN_IF_ERROR(read_vocabulary(parse(files_.vocab)));
  for (const auto& [id, token] : member(config, "added_tokens_decoder").items()) {
    if (id.empty() || id.size() > 8 || id.find_first_not_of("0123456789") != std::string::npos) {
      return corrupt("tokenizer_config.json has the token id " + gguf_quoted(id));
    }
    KV_RETURN_IF_ERROR(read_added(token, std::stoi(id)));
  }
  std::string_view rest = files_.merges;
  for (bool first = true; !rest.empty(); first = false) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty() && !(first && line.starts_with("#version"))) data_.merges.emplace_back(line);
  }
  return Status();
}

void Reader::read_config(const json& config) {
  const auto read_id = [&](const char* key, std::optional<int32_t>* id) {
    if (const auto found = id_of(token_text(member(config, key)))) *id = found;
  };
  read_id("bos_token", &data_.bos);
  read_id("eos_token", &data_.eos);
  read_id("unk_token", &data_.unk);
  read_id("pad_token", &data_.pad);
  for (const auto& id : {data_.bos, data_.eos, data_.pad}) {
    if (id) data_.token_types[static_cast<size_t>(*id)] = static_cast<int32_t>(TokenType::kControl);
  }
  data_.add_bos = flag(config, "add_bos_token", data_.add_bos);
  if (flag(config, "add_eos_token", false) && !data_.closing) data_.closing = data_.eos;
  read_chat_template(config);
}

void Reader::read_chat_template(const json& config) {
  const json& source = member(config, "chat_template");
  if (!files_.chat_template.empty()) {
    data_.chat_template = std::string(files_.chat_template);
  } else if (source.is_string()) {
    data_.chat_template = source.get<std::string>();
  } else if (source.is_array()) {
    for (const json& named : source) {
      if (named.at("name") == "default") data_.chat_template = named.at("template").get<std::string>();
    }
  }
}

Status Reader::read_ends(const json& generation) {
  constexpr size_t kMostEnds = 128;
  const json& ends = member(generation, "eos_token_id");
  if (ends.size() > kMostEnds) return corrupt(fmt::format("{} tokens end an output", ends.size()));
  // Of a single number, too, the loop has one turn; of null none.
  for (const json& end : ends) {
    const int64_t number = id_in(end);
    if (number < 0 || number >= static_cast<int64_t>(data_.tokens.size())) continue;  // of another modality
    const auto id = static_cast<int32_t>(number);
    if (!data_.eos) data_.eos = id;
    const bool known = id == data_.eos ||
                       std::find(data_.more_ends.begin(), data_.more_ends.end(), id) != data_.more_ends.end();
    if (!known) data_.more_ends.push_back(id);
  }
  return Status();
}

std::optional<int32_t> Reader::id_of(const std::optional<std::string>& text) const {
  const auto found = text ? ids_.find(*text) : ids_.end();
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

Result<TokenizerData> read_tokenizer_json(const TokenizerFiles& files, std::string_view origin) {
  try {
    return Reader(files, origin).run();
  } catch (const json::exception& e) {
    std::string what = e.what();
    std::replace(what.begin(), what.end(), '\'', '"');
    return error(ErrorCode::kCorrupt, "{}: the tokenizer's files are not as they should be: {}", origin,
                 one_line(what, kShown));
  }
}

}  // namespace kvasir
