#include "base/yaml.h"

#include <unicode/utf8.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "base/untrusted_text.h"

namespace kvasir {
namespace {

constexpr size_t kShownName = 100;  // bytes of a name in a message

// A comment behind the text, of bytes that no text may have. The parser takes a quote that is never closed
// for one that is closed at the end: such a value has them.
constexpr std::string_view kEnd = "#\x01\x1d\x01\n";

struct Fault {
  TextPlace at;
  std::string what;
};

TextPlace place_of(const YAML::Mark& mark) {
  return {std::max(mark.line, 0) + 1, std::max(mark.column, 0) + 1};
}

// Builds the nodes. Throws a Fault.
class Builder final : public YAML::EventHandler {
 public:
  YamlNode take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (began_) throw Fault{place_of(mark), "a second document begins; there may be one"};
    began_ = true;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(make(YamlNode::Kind::kNone, mark, "", anchor));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override {
    throw Fault{place_of(mark), "an alias (*NAME); write the value itself, or put it in quotes"};
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    if (value.find(kEnd.substr(0, kEnd.size() - 1)) != std::string::npos) {
      throw Fault{place_of(mark), "a quote that is not closed"};
    }
    YamlNode node = make(YamlNode::Kind::kText, mark, tag, anchor);
    node.text = value;
    node.quoted = tag == "!";
    add(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    open(make(YamlNode::Kind::kList, mark, tag, anchor));
  }
  void OnSequenceEnd() override { open_.pop_back(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    open(make(YamlNode::Kind::kMap, mark, tag, anchor));
  }
  void OnMapEnd() override { open_.pop_back(); }

 private:
  // A list or map that has begun and not ended. A node stays where it is until it has ended: only the
  // innermost one grows.
  struct Open {
    YamlNode* node;
    std::optional<std::pair<std::string, TextPlace>> name;  // of a map: of the entry whose value is next
    std::map<std::string, int> lines;                       // of a map: of the names that it has
  };

  static YamlNode make(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
                       YAML::anchor_t anchor) {
    const TextPlace at = place_of(mark);
    if (anchor != 0) throw Fault{at, "an anchor (&NAME); leave it out, or put the value in quotes"};
    if (!tag.empty() && tag != "?" && tag != "!") throw Fault{at, "a tag (!NAME); leave it out"};
    YamlNode node;
    node.kind = kind;
    node.at = at;
    return node;
  }

  // Where it then is; null: it has become a name.
  YamlNode* add(YamlNode node) {
    if (open_.empty()) {
      root_ = std::move(node);
      return &root_;
    }
    Open& parent = open_.back();
    if (parent.node->kind == YamlNode::Kind::kMap) {
      if (!parent.name) {
        set_name(parent, std::move(node));
        return nullptr;
      }
      node.name = std::move(parent.name->first);
      node.name_at = parent.name->second;
      parent.name.reset();
    }
    parent.node->items.push_back(std::move(node));
    return &parent.node->items.back();
  }

  static void set_name(Open& map, YamlNode node) {
    if (node.kind != YamlNode::Kind::kText) throw Fault{node.at, "a name of an entry must be a text"};
    const auto [first, fresh] = map.lines.emplace(node.text, node.at.line);
    if (!fresh) {
      throw Fault{node.at, fmt::format("'{}' is there twice; the first is in line {}",
                                       one_line(node.text, kShownName), first->second)};
    }
    map.name.emplace(std::move(node.text), node.at);
  }

  void open(YamlNode node) {
    if (open_.size() == kMaxYamlDepth) {
      throw Fault{node.at, fmt::format("more than {} lists and maps in each other", kMaxYamlDepth)};
    }
    const TextPlace at = node.at;
    YamlNode* const there = add(std::move(node));
    if (there == nullptr) throw Fault{at, "a name of an entry must be a text"};
    open_.push_back({there, {}, {}});
  }

  bool began_ = false;
  YamlNode root_;
  std::vector<Open> open_;
};

// What no text of YAML may have, and what the parser would take, or pass over.
std::optional<Fault> find_fault(const std::string& text) {
  if (text.size() > kMaxYamlBytes) return Fault{{}, fmt::format("more than {} bytes", kMaxYamlBytes)};
  int line = 1;
  int32_t line_begin = 0;
  bool indents = true;       // only spaces and tabs so far in this line
  std::optional<Fault> tab;  // in its indentation
  const auto size = static_cast<int32_t>(text.size());
  for (int32_t i = 0; i < size;) {
    const TextPlace at = {line, i - line_begin + 1};
    UChar32 c = 0;
    U8_NEXT(text.data(), i, size, c);
    if (c < 0) return Fault{at, "a byte that is not UTF-8"};
    if ((c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7f) {
      return Fault{at, fmt::format("the control character {:#04x}", c)};
    }
    if (c == '\n') {
      ++line;
      line_begin = i;
      indents = true;
      tab.reset();
    } else if (indents && c == '\t') {
      if (!tab) tab = Fault{at, "a tab in the indentation; write spaces"};
    } else if (c != ' ' && c != '\r') {
      if (tab && c != '#') return tab;
      indents = false;
      tab.reset();
    }
  }
  return std::nullopt;
}

}  // namespace

const YamlNode* YamlNode::find(std::string_view entry_name) const {
  if (kind != Kind::kMap) return nullptr;
  const auto entry =
      std::find_if(items.begin(), items.end(), [&](const YamlNode& item) { return item.name == entry_name; });
  return entry == items.end() ? nullptr : &*entry;
}

Result<YamlNode> parse_yaml(const std::string& text, std::string_view path) {
  if (const std::optional<Fault> fault = find_fault(text)) {
    return error_at(path, fault->at, "{}", fault->what);
  }
  try {
    std::istringstream in(text + (text.ends_with('\n') ? "" : "\n") + std::string(kEnd));
    YAML::Parser parser(in);
    Builder builder;
    while (parser.HandleNextDocument(builder)) {
    }
    return builder.take();
  } catch (const Fault& fault) {
    return error_at(path, fault.at, "{}", fault.what);
  } catch (const YAML::Exception& e) {
    return error_at(path, place_of(e.mark), "no YAML: {}", e.msg);
  }
}

Result<YamlNode> read_yaml(const std::string& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  std::string text(kMaxYamlBytes + 1, '\0');
  if (in) in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in.eof() && in.fail()) {
    return error(ErrorCode::kNotFound, "{}: cannot be read: {}", path,
                 errno != 0 ? system_reason(errno) : "it is no file");
  }
  text.resize(static_cast<size_t>(in.gcount()));
  return parse_yaml(text, path);
}

}  // namespace kvasir
