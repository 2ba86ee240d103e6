// The form of gpt-oss: messages <|start|>ROLE<|channel|>CHANNEL to=RECIPIENT <|constrain|>json<|message|>TEXT
// and then <|end|>, or <|call|> behind a call and <|return|> behind the last one. The prompt ends with
// <|start|>assistant, and the recipient may stand behind that role.
#include <utility>

#include "server/outputs/call_parser.h"
#include "server/outputs/json_pieces.h"

namespace kvasir {
namespace {

constexpr size_t kMostHeaderBytes = 1024;

class Harmony final : public CallParser {
 public:
  explicit Harmony(const CallParserInputs& inputs)
      : finder_({"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>",
                 "<|return|>"}),
        calls_(inputs.format == ToolFormat::kOpenAi) {}

  void push(char c, AnswerParts& parts) override {
    std::string shown;
    const std::optional<size_t> mark = finder_.push(c, shown);
    add(shown, parts);
    if (!mark) return;
    switch (static_cast<Mark>(*mark)) {
      case Mark::kStart:
        header_.clear();  // of a message that has no text
        [[fallthrough]];
      case Mark::kChannel:
      case Mark::kConstrain:
        end_message(parts);
        header_ += *mark == 1 ? "\n" : " ";  // the channel is behind the line break
        place_ = Place::kHeader;
        return;
      case Mark::kMessage:
        return begin_message(parts);
      case Mark::kEnd:
      case Mark::kCall:
      case Mark::kReturn:
        end_message(parts);
        header_.clear();
        place_ = Place::kContent;
        return;
    }
  }

  void finish(AnswerParts& parts) override {
    add(finder_.finish(), parts);
    if (place_ == Place::kBegin) add_content(header_, parts);
    end_message(parts);  // the mark behind a call ends the output, and has no text
  }

  bool thinks() const override { return place_ == Place::kReasoning; }

 private:
  enum class Mark : uint8_t { kStart, kChannel, kConstrain, kMessage, kEnd, kCall, kReturn };
  enum class Place : uint8_t { kBegin, kContent, kHeader, kReasoning, kCall };

  void add(const std::string& text, AnswerParts& parts) {
    switch (place_) {
      case Place::kBegin:
        return begin(text, parts);
      case Place::kContent:
        return add_content(text, parts);
      case Place::kReasoning:
        return parts.reasoning(text);
      case Place::kCall:
        return parts.arguments(text);
      case Place::kHeader:
        if (header_.size() < kMostHeaderBytes) header_ += text;
        return;
    }
  }

  // The prompt has begun a header: a recipient goes on with it, other text is content.
  void begin(const std::string& text, AnswerParts& parts) {
    header_ += text;
    constexpr std::string_view kTo = " to=";
    if (kTo.starts_with(header_) || (header_.starts_with(kTo) && header_.size() < kMostHeaderBytes)) return;
    place_ = Place::kContent;
    add_content(std::exchange(header_, std::string()), parts);
  }

  void add_content(const std::string& text, AnswerParts& parts) {
    has_content_ = has_content_ || !text.empty();
    parts.content(text);
  }

  // The function that the message goes to; empty: none.
  static std::string_view called(std::string_view header) {
    constexpr std::string_view kTo = "to=functions.";
    const size_t to = header.find(kTo);
    if (to == std::string_view::npos) return {};
    header.remove_prefix(to + kTo.size());
    return header.substr(0, header.find_first_of(" \t\n<"));
  }

  void begin_message(AnswerParts& parts) {
    end_message(parts);
    const std::string header = std::exchange(header_, std::string());
    const size_t line = header.find('\n');
    const std::string_view channel =
        std::string_view(header).substr(line == std::string::npos ? 0 : line + 1);
    const std::string_view name = called(header);
    if (!name.empty() && calls_) {
      parts.begin_call(name);
      place_ = Place::kCall;
    } else if (channel.starts_with("analysis")) {
      parts.reasoning("\n");  // between two thoughts
      place_ = Place::kReasoning;
    } else {
      if (has_content_) parts.content("\n");  // between a preamble and what follows
      place_ = Place::kContent;
    }
  }

  void end_message(AnswerParts& parts) {
    if (parts.in_call()) parts.end_call();
  }

  MarkFinder finder_;
  const bool calls_;
  Place place_ = Place::kBegin;
  bool has_content_ = false;
  std::string header_;
};

}  // namespace

std::unique_ptr<CallParser> make_harmony(const CallParserInputs& inputs) {
  return std::make_unique<Harmony>(inputs);
}

}  // namespace kvasir
