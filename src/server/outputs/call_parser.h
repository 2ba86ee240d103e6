// What all parsers of calls have in common. Internal to outputs/.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizers/stop_matcher.h"
#include "server/api_request.h"
#include "server/outputs/answer_parts.h"
#include "server/outputs/output_format.h"

namespace kvasir {

// One per choice. Reads the text behind the reasoning, byte by byte.
class CallParser {
 public:
  virtual ~CallParser() = default;
  virtual void push(char c, AnswerParts& parts) = 0;
  // The text has ended: what waits is content, a call that has begun is cut.
  virtual void finish(AnswerParts& parts) = 0;
  // Whether text that comes now is reasoning.
  virtual bool thinks() const { return false; }
};

// Finds marks in text, again and again.
class MarkFinder {
 public:
  // REQUIRES: none of the marks is empty.
  explicit MarkFinder(const std::vector<std::string>& marks);
  // Appends to `out` what can be no part of a mark. The index of the mark that `c` completes.
  std::optional<size_t> push(char c, std::string& out);
  // What waited.
  std::string finish();

 private:
  StopMatcher fresh_, matcher_;
};

struct CallParserInputs {
  ToolFormat format = ToolFormat::kNone;
  const std::vector<ApiTool>* tools = nullptr;  // outlive the parser
  // Marks that are control tokens of the model. They are not shown where no call follows.
  std::vector<std::string> hidden;
  bool hides(std::string_view mark) const;
};

// kHermes, kLlama3Json, kMistral, kMistralArgs, kGranite.
std::unique_ptr<CallParser> make_json_calls(const CallParserInputs& inputs);
std::unique_ptr<CallParser> make_xml_calls(const CallParserInputs& inputs);
// Reasoning and content, too.
std::unique_ptr<CallParser> make_harmony(const CallParserInputs& inputs);

}  // namespace kvasir
