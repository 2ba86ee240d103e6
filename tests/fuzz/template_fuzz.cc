// A chat template from anywhere: parsing and rendering it must end, in bounds, whatever the bytes are.
//
// The input is a template, and after a zero byte the text of one message.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "model/templates/chat_template.h"
#include "model/tokenizers/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t split = input.find('\0');
  const auto parsed = kvasir::ChatTemplate::parse(input.substr(0, split));
  if (!parsed.ok()) return 0;

  const std::string_view content = split == std::string_view::npos ? "Hello" : input.substr(split + 1);
  const std::vector<kvasir::ChatMessage> messages = {
      {"system", "Be brief."}, {"user", std::string(content)}, {"assistant", "  yes\n"}};
  kvasir::ChatTemplateInputs inputs;
  inputs.messages = messages;
  inputs.bos_token = "<s>";
  inputs.now_seconds = 1'700'000'000;
  // A thousandth of what a template may use is enough to meet every bound, and as much quicker.
  kvasir::TemplateBudget budget;
  budget.steps /= 1000;
  budget.bytes /= 1000;
  budget.output_bytes /= 1000;
  const auto text = parsed->render(inputs, budget);
  if (text.ok()) {
    uint32_t end = 0;
    for (const kvasir::Interval& range : text->trusted_ranges()) {
      KV_CHECK(!range.empty() && range.begin >= end && range.end <= text->size(), "begin={} end={}",
               range.begin, range.end);
      end = range.end + 1;  // ranges that touch are one
    }
  }
  KV_CHECK(!text.ok() || kvasir::is_valid_utf8(text->text()), "a prompt that is not UTF-8");
  return 0;
}
