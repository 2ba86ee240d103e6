// What the goldens cannot say: what is refused at load, and that hostile templates end.
#include "model/templates/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "model/tokenizers/utf8.h"

namespace kvasir {
namespace {

using ::testing::HasSubstr;

Result<std::string> render(const std::string& source, ChatTemplateInputs inputs = {}) {
  KV_ASSIGN_OR_RETURN(const ChatTemplate chat_template, ChatTemplate::parse(source));
  KV_ASSIGN_OR_RETURN(const MarkedText text, chat_template.render(inputs));
  return text.text();
}

std::string repeat(const std::string& unit, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += unit;
  return out;
}

TEST(ChatTemplate, NamesWhatItDoesNotKnowAndTheLine) {
  struct Case {
    const char* source;
    const char* part;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"a\n{% include 'x' %}", "line 2: the statement 'include'"},
           {"{% block b %}{% endblock %}", "the statement 'block'"},
           {"\n\n{{ x | shuffle }}", "line 3: the filter 'shuffle'"},
           {"{{ x is prime }}", "the test 'prime'"},
           {"{{ [].append(1) }}", "the method 'append'"},
           {"{{ lipsum() }}", "the function 'lipsum'"},
           {"{{ x.__class__ }}", "the attribute '__class__'"},
           {"{{ '%s' % 1 }}", "formatting"},
           {"{{ f(*args) }}", "an unpacked argument"},
           {"{% for x in y recursive %}{% endfor %}", "a recursive loop"},
           {"{% for x in y %}{% macro m() %}{% endmacro %}{% endfor %}", "a macro inside"},
           {"{{ [1][0]() }}", "a call of anything"},
       }) {
    const auto result = ChatTemplate::parse(c.source);
    ASSERT_FALSE(result.ok()) << c.source;
    EXPECT_EQ(result.status().code(), ErrorCode::kUnsupported) << c.source;
    EXPECT_THAT(result.status().message(), HasSubstr(c.part));
    EXPECT_THAT(result.status().message(), HasSubstr("chat template line "));
  }
}

TEST(ChatTemplate, RefusesWhatIsNoTemplate) {
  for (const char* source : {"{{ 1",
                             "{% if x %}",
                             "{% endif %}",
                             "{{ }}",
                             "{{ 1 + }}",
                             "{{ 'abc }}",
                             "{# no end",
                             "{% raw %}",
                             "{{ (1 }}",
                             "{{ 1) }}",
                             "{{ [1 2] }}",
                             "{% for in x %}{% endfor %}",
                             "{% for x y %}{% endfor %}",
                             "{% set = 1 %}",
                             "{% set x %}",
                             "{{ {1} }}",
                             "{{ a b }}",
                             "{% if %}{% endif %}",
                             "{% break %}",
                             "{{ 1x }}",
                             "{{ 99999999999999999999 }}",
                             "{{ '\\ud800' }}",
                             "{{ x[] }}",
                             "{{ x[1:2:3:4] }}",
                             "{{ f(a=1, 2) }}",
                             "{% else %}",
                             "{{ ? }}",
                             "{% if a %}{% else %}{% elif b %}{% endif %}",
                             "{{ x. }}",
                             "{% %}",
                             "{{ \xff }}",
                             "{{ and }}",
                             "{% macro m(a=1, b) %}{% endmacro %}",
                             "{{ 007 }}",
                             "{% 5 %}",
                             "{{ 1 is number is defined }}"}) {
    const auto result = ChatTemplate::parse(source);
    ASSERT_FALSE(result.ok()) << source;
    EXPECT_EQ(result.status().code(), ErrorCode::kInvalidArgument)
        << source << ": " << result.status().message();
    EXPECT_EQ(result.status().message().find('\n'), std::string::npos);
  }
}

TEST(ChatTemplate, SaysWhereItFails) {
  const auto result = render("line one\n{% if true %}\n{{ missing.thing }}{% endif %}");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().message(), "chat template line 3: 'thing' of something undefined is read");
}

TEST(ChatTemplate, TakesFurtherVariables) {
  ChatTemplateInputs inputs;
  inputs.variables = {
      {"enable_thinking", false}, {"n", int64_t{3}}, {"s", std::string("x\xff")}, {"f", 0.5}, {"z", {}}};
  EXPECT_EQ(render("{{ enable_thinking }} {{ n + 1 }} {{ s }} {{ f }} {{ z }}", inputs).value(),
            "False 4 x\uFFFD 0.5 None");
  EXPECT_EQ(render("{{ bos_token is defined }}{{ bos_token }}").value(), "False");
  EXPECT_EQ(render("{% generation %}a{% endgeneration %}b").value(), "ab");
  EXPECT_EQ(render("{{ strftime_now is defined }}").value(), "False");
  EXPECT_FALSE(render("{{ strftime_now('%Y') }}").ok());
}

TEST(ChatTemplate, MendsIllFormedMessages) {
  const std::vector<ChatMessage> messages = {{"user",
                                              "a\xF0\x9F"
                                              "b"}};
  ChatTemplateInputs inputs;
  inputs.messages = messages;
  EXPECT_EQ(render("{{ messages[0].content }}", inputs).value(), "a\uFFFDb");
}

// Deep sources are refused while they are read, before they can exhaust the stack.
TEST(ChatTemplate, BoundsNesting) {
  const int many = 20000;
  for (const std::string& source :
       {"{{ " + repeat("(", many) + "1" + repeat(")", many) + " }}",
        "{{ " + repeat("[", many) + repeat("]", many) + " }}", "{{ " + repeat("not ", many) + "1 }}",
        "{{ " + repeat("-", many) + "1 }}", "{{ 1" + repeat(" + 1", many) + " }}",
        "{{ x" + repeat(".a", many) + " }}", "{{ x" + repeat("[0]", many) + " }}",
        "{{ x" + repeat("|trim", many) + " }}", "{{ " + repeat("1 if 1 else ", many) + "1 }}",
        "{{ x" + repeat(" is eq(1)", many) + " }}", repeat("{% if 1 %}", many) + repeat("{% endif %}", many),
        repeat("{% for a in b %}", many) + repeat("{% endfor %}", many),
        "{{ [1]|map(" + repeat("'map',", many) + "'upper') }}", "{{ x" + repeat(".strip()", many) + " }}",
        "{{ 1" + repeat(" ~ 1", many) + " }}",
        "{{ {'a':" + repeat("{'a':", many) + "1" + repeat("}", many) + "} }}"}) {
    const auto result = ChatTemplate::parse(source);
    ASSERT_FALSE(result.ok()) << source.substr(0, 30);
    EXPECT_EQ(result.status().code(), ErrorCode::kUnsupported) << result.status().message();
  }
  EXPECT_FALSE(ChatTemplate::parse(std::string((1 << 20) + 1, 'x')).ok());
  EXPECT_TRUE(ChatTemplate::parse(repeat("{% if 1 %}a{% elif 2 %}b{% endif %}", 5000)).ok());
}

// Each of these would run for ever, or fill the memory, if it were let.
TEST(ChatTemplate, BoundsTimeAndMemory) {
  const std::string nest = "{% for a in range(99999) %}{% for b in range(99999) %}";
  const std::string ends = "{% endfor %}{% endfor %}";
  const std::string doubling = repeat("{% set x = x + x %}", 60);
  for (const std::string& source : {
           nest + ends,
           nest + "x" + ends,
           "{% set x = 'ab' %}" + doubling,
           "{% set x = [1, 2] %}" + doubling,
           "{% set x = 'ab' %}" + repeat("{% set x = x.replace('', x) %}", 60),
           "{% set x = [1] %}" + repeat("{% set x = [x, x] %}", 60) + "{{ x }}",
           "{% set x = [1] %}" + repeat("{% set x = [x, x] %}", 60) + "{{ x | tojson }}",
           "{% set x = [1] %}{% set y = [1] %}" + repeat("{% set x = [x, x] %}{% set y = [y, y] %}", 60) +
               "{{ x == y }}",
           "{% set x = [1] %}" + repeat("{% set x = [x, x] %}", 60) + "{{ raise_exception(x) }}",
           "{% set x = [1] %}" + repeat("{% set x = [x, x] %}", 60) + "{{ x is lower }}",
           "{% set x = [1] %}" + repeat("{% set x = [x, x] %}", 60) + "{{ [1] | join(x) }}",
           std::string("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
           std::string("{% macro m(a) %}{{ m([a]) }}{{ m([a]) }}{% endmacro %}{{ m(1) }}"),
           "{% set n = namespace(x=[]) %}" + nest + "{% set n.x = [n.x] %}" + ends,
           "{% set n = namespace(x='a') %}" + nest +
               "{% set n.x = n.x ~ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' %}" + ends,
           "{% set x = 'a' * 99999 %}" + nest + "{% set y = x.split('a') %}" + ends,
           "{% set x = 'a' * 9999999 %}" + nest + "{% set y = x | upper %}" + ends,
           "{% set x = 'a' * 9999999 %}" + nest + "{% set y = x[-1] %}" + ends,
           std::string("{{ 'a' * 999999999999 }}"),
           std::string("{{ 9999999999 ** 9999999999 }}"),
           std::string("{{ [1] | tojson(indent=9999999999) }}"),
       }) {
    const auto begin = std::chrono::steady_clock::now();
    const auto result = render(source);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    EXPECT_FALSE(result.ok()) << source.substr(0, 80);
    // An optimised build takes about a second at the worst; a sanitiser on a busy machine far longer.
    EXPECT_LT(seconds.count(), 60.0) << source.substr(0, 80);
  }
}

// A namespace that held itself would never be freed.
TEST(ChatTemplate, KeepsNamespacesOutOfValues) {
  EXPECT_FALSE(render("{% set n = namespace() %}{% set n.a = n %}").ok());
  EXPECT_FALSE(render("{% set n = namespace() %}{% set n.a = [n] %}").ok());
  EXPECT_FALSE(render("{% set n = namespace() %}{% set n.a = {'n': n} %}").ok());
  EXPECT_FALSE(render("{% set n = namespace(m=namespace()) %}").ok());
}

// A long conversation is nothing special.
TEST(ChatTemplate, RendersLongConversations) {
  const std::vector<ChatMessage> messages(2000, ChatMessage{"user", std::string(1000, 'x')});
  ChatTemplateInputs inputs;
  inputs.messages = messages;
  const auto result = render(
      "{% for m in messages %}<{{ m['role'] + '>' + m['content'] | trim + '\n' }}{% endfor %}", inputs);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->size(), 2000u * 1007);
}

}  // namespace
}  // namespace kvasir
