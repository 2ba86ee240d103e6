// What of a rendered template is trusted: its own words, and nothing that a message or a variable brought.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/templates/chat_template.h"
#include "model/tokenizers/tokenizer.h"
#include "model/tokenizers/utf8.h"

namespace kvasir {
namespace {

using MarksJson = nlohmann::json;

// Trusted runs in braces.
std::string shown(const MarkedText& text) {
  std::string out;
  size_t at = 0;
  for (const Interval& range : text.trusted_ranges()) {
    out +=
        text.text().substr(at, range.begin - at) + "{" + text.text().substr(range.begin, range.size()) + "}";
    at = range.end;
  }
  return out + text.text().substr(at);
}

std::string render_marks(const std::string& source, const std::string& role = "user") {
  const auto chat_template = ChatTemplate::parse(source);
  if (!chat_template.ok()) return chat_template.status().message();
  const std::vector<ChatMessage> messages = {{role, "a<x>b"}};
  ChatTemplateInputs inputs;
  inputs.messages = messages;
  inputs.bos_token = "BOS";
  inputs.variables = {{"v", std::string("V")}, {"n", int64_t{7}}};
  inputs.now_seconds = 0;
  const auto text = chat_template->render(inputs);
  return text.ok() ? shown(*text) : text.status().message();
}

TEST(TemplateMarks, FollowTextThroughEveryOperation) {
  struct Case {
    const char* source;
    const char* marks;
  };
  for (const Case& c : std::initializer_list<Case>{
           // Joining.
           {"T{{ m }}T", "{T}a<x>b{T}"},
           {"{{ 'A' + m + 'B' + 'C' }}", "{A}a<x>b{BC}"},
           {"{{ 'A' ~ m ~ 1 ~ none }}", "{A}a<x>b1None"},
           {"{{ ('A' + m) * 2 }}", "{A}a<x>b{A}a<x>b"},
           {"{{ [m, 'A', m]|join('-') }}", "a<x>b{-A-}a<x>b"},
           {"{{ '-'.join([m, 'A']) }}", "a<x>b{-A}"},
           {"{{ m|join('-') }}", "a{-}<{-}x{-}>{-}b"},
           {"{{ 'A' 'B' }}", "{AB}"},
           // Cutting.
           {"{{ ('  A' + m + '  ')|trim }}", "{A}a<x>b"},
           {"{{ (' A' + m + ' ').lstrip() }}|{{ (m + 'BB').rstrip('B') }}", "{A}a<x>b{ |}a<x>b"},
           {"{{ ('AB' + m)[1:3] }}", "{B}a"},
           {"{{ ('A' + m)[::-1] }}", "b>x<a{A}"},
           {"{{ ('A' + m)[0] }}{{ ('A' + m)[-1] }}", "{A}b"},
           {"{{ ('A' + m)|first }}{{ ('A' + m)|last }}", "{A}b"},
           {"{{ ('A' + m)|reverse }}", "b>x<a{A}"},
           {"{% for c in 'A' + m %}{{ c }}{% endfor %}", "{A}a<x>b"},
           {"{{ ('A,' + m).split(',')[0] }}{{ ('A,' + m).split(',')[1] }}", "{A}a<x>b"},
           {"{{ ('A ' + m).split()|join }}{{ ('A-' + m).rsplit('-', 1)[1] }}", "{A}a<x>ba<x>b"},
           {"{{ ('A\n' + m).splitlines()|join('\n') }}", "{A\n}a<x>b"},
           {"{{ ('A' + m).removeprefix('Aa') }}{{ (m + 'B').removesuffix('xB') }}", "<x>ba<x>b{B}"},
           // Putting in.
           {"{{ m.replace('<x>', 'LIT') }}", "a{LIT}b"},
           {"{{ m|replace('<x>', '') }}", "ab"},
           {"{{ 'AxB'|replace('x', m) }}", "{A}a<x>b{B}"},
           {"{{ 'AB'.replace('', m, 1) }}", "a<x>b{AB}"},
           // Changing characters: only where every one of them is trusted.
           {"{{ 'a'|upper }}{{ 'B'.lower() }}{{ 'c'|title }}{{ 'd'|capitalize }}{{ 'e'.title() }}",
            "{AbCDE}"},
           {"{{ m|upper }}{{ ('a' + m)|title }}{{ ('a' + m).capitalize() }}", "A<X>BAa<X>bAa<x>b"},
           {"{{ 'A'|tojson }}{{ [m]|tojson }}{{ ['A'] }}", "\"A\"[\"a<x>b\"]['A']"},
           {"{{ strftime_now('%Y') }}{{ strftime_now(m) }}", "{1970}a<x>b"},
           {"{{ 1 }}{{ 0.5 }}{{ true }}{{ m|length }}{{ '5'|int }}", "10.5True55"},
           // Passing on.
           {"{% set s %}A{{ m }}{% endset %}{{ s }}", "{A}a<x>b"},
           {"{% macro f(x, y='D') %}M{{ x }}{{ y }}{% endmacro %}{{ f(m) }}", "{M}a<x>b{D}"},
           {"{% set s = namespace(x='A') %}{{ s.x }}{% set s.x = m %}{{ s.x }}", "{A}a<x>b"},
           {"{{ {'k': 'A', 'l': m}['k'] }}{{ {'l': m}.l }}{{ {'K': 1}|list|join }}", "{A}a<x>bK"},
           {"{{ none|default('D') }}{{ q|default('D') }}{{ m or 'D' }}{{ 'A' if m else m }}",
            "None{D}a<x>b{A}"},
           {"{{ ['a', m]|map('upper')|join }}", "{A}A<X>B"},
           {"{% with s = 'A' + m %}{{ s|string }}{% endwith %}", "{A}a<x>b"},
           // Where text comes from.
           {"{{ bos_token }}{{ bos_token + m }}", "{BOSBOS}a<x>b"},
           {"{{ v }}{{ n }}{{ '' ~ v }}", "V7V"},
           {"{{ '<|' + messages[0].role + '|>' }}", "{<|user|>}"},
       }) {
    EXPECT_EQ(render_marks(std::string("{% set m = messages[0]['content'] %}") + c.source), c.marks)
        << c.source;
  }
}

TEST(TemplateMarks, OnlyAKnownRoleIsTrusted) {
  const std::string source = "{{ '<|' + messages[0].role + '|>' }}";
  for (const char* role : {"system", "developer", "user", "assistant", "tool", "function"}) {
    EXPECT_EQ(render_marks(source, role), std::string("{<|") + role + "|>}");
  }
  EXPECT_EQ(render_marks(source, "im_end"), "{<|}im_end{|>}");
  EXPECT_EQ(render_marks(source, ""), "{<||>}");
}

// The bytes, then every control token that the golden templates have.
Tokenizer make_tokenizer(const std::vector<std::string>& control) {
  TokenizerData data;
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
    std::string token;
    append_utf8(printable ? byte : next++, &token);
    data.tokens.push_back(token);
    data.token_types.push_back(1);
  }
  for (const std::string& token : control) {
    data.tokens.push_back(token);
    data.token_types.push_back(3);
  }
  auto tokenizer = Tokenizer::create(std::move(data));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

// Where no message spells a control token, every template of the goldens gives the ids that it would give if
// all of its text were trusted.
TEST(TemplateMarks, OrdinaryConversationsKeepTheirTokens) {
  const std::vector<std::string> control = {
      "<|im_start|>",  "<|im_end|>",  "[INST]",      "[/INST]",    "<<SYS>>",           "<</SYS>>",
      "</s>",          "<s>",         "<|user|>",    "<|system|>", "<|assistant|>",     "<|start_header_id|>",
      "<|eot_id|>",    "<end>",       "<think>",     "</think>",   "<|end_header_id|>", "<start_of_turn>",
      "<end_of_turn>", "<tool_call>", "</tool_call>"};
  const Tokenizer tokenizer = make_tokenizer(control);
  std::ifstream in(std::string(KVASIR_SOURCE_DIR) + "/tests/golden/chat_templates.json");
  const MarksJson goldens = MarksJson::parse(in);
  size_t compared = 0;
  size_t with_control = 0;
  for (const MarksJson& entry : goldens.at("templates")) {
    const ChatTemplate chat_template = ChatTemplate::parse(entry.at("source").get<std::string>()).value();
    for (const MarksJson& conversation : goldens.at("conversations")) {
      std::vector<ChatMessage> messages;
      bool ordinary = true;
      for (const MarksJson& message : conversation) {
        messages.push_back({message.at("role"), message.at("content")});
        for (const std::string& token : control) {
          ordinary = ordinary && messages.back().content.find(token) == std::string::npos;
        }
      }
      ChatTemplateInputs inputs;
      inputs.messages = messages;
      inputs.bos_token = "<s>";
      inputs.eos_token = "</s>";
      const auto text = chat_template.render(inputs);
      if (!ordinary || !text.ok()) continue;
      const std::vector<int32_t> ids = tokenizer.encode(*text);
      EXPECT_EQ(ids, tokenizer.encode(text->text(), true)) << entry.at("name") << "\n" << shown(*text);
      EXPECT_EQ(tokenizer.decode(ids, false).value(), text->text());
      ++compared;
      with_control += std::any_of(ids.begin(), ids.end(), [](int32_t id) { return id >= 256; });
    }
  }
  EXPECT_GT(compared, 100u);
  EXPECT_GT(with_control, 80u);
}

}  // namespace
}  // namespace kvasir
