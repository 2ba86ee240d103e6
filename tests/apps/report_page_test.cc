#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/report/page_json.h"

namespace kvasir {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string html_of(const std::string& blocks) {
  const Result<DrawnPage> drawn = draw_page(R"({"title": "A & B", "blocks": [)" + blocks + "]}");
  EXPECT_TRUE(drawn.ok()) << drawn.status().message();
  return drawn.ok() ? drawn->html : "";
}

TEST(ReportPage, HasTheBlocks) {
  const std::string html = html_of(R"(
    {"heading": "H<", "id": "here"}, {"heading": "Small", "small": true}, {"text": "T", "dim": true},
    {"links": [["to H", "#here"]]}, {"printed": "one\n<two>"},
    {"fold": "F", "open": true, "blocks": [{"text": "inside"}]}, {"text": "outside"})");
  EXPECT_THAT(html, HasSubstr("<h1>A &amp; B</h1>"));
  EXPECT_THAT(html, HasSubstr("<h2 id=\"here\">H&lt;</h2>\n<h3>Small</h3>\n<p class=\"n\">T</p>"));
  EXPECT_THAT(html, HasSubstr("<li><a href=\"#here\">to H</a></li>"));
  EXPECT_THAT(html, HasSubstr("<pre tabindex=\"0\">one\n&lt;two&gt;\n</pre>"));
  EXPECT_THAT(html,
              HasSubstr("<details open><summary>F</summary>\n<p>inside</p>\n</details>\n<p>outside</p>"));
}

TEST(ReportPage, CellsHaveUnits) {
  const std::string html =
      html_of(R"({"table": {"heads": ["run", "a", "b", "c"], "names": 1, "strong": [1], "rows": [
    ["one", {"value": 80000, "unit": "ms"}, {"value": 17.7, "to": 28.7, "unit": "%"}, null],
    ["two", {"value": 1.5, "half": 0.25}, {"value": 3.5, "before": "\u2265 "}, "x"]]}})");
  EXPECT_THAT(html,
              HasSubstr("<td class=\"s\">one</td><td>80 s</td><td>17.7 % to 28.7 %</td><td>&ndash;</td>"));
  EXPECT_THAT(
      html, HasSubstr("<tr class=\"b\"><td class=\"s\">two</td><td>1.5 \u00b1 0.25</td><td>\u2265 3.5</td>"));
}

TEST(ReportPage, ChartsAreFilesToo) {
  const Result<DrawnPage> drawn = draw_page(R"({"title": "", "blocks": [{"charts": [
    {"file": "lines", "title": "L", "x": "rate", "unit": "ms", "bounds": [{"name": "bound", "value": 1500}],
     "bands": [{"name": "paper", "low": 1000, "high": 2000, "system": 1}],
     "lines": [{"name": "vllm", "x": [1, 2], "y": [500, 2500], "half": [0, 100]},
               {"name": "theirs", "system": 1, "hollow": true, "x": [2], "y": [700]}]},
    {"file": "rows", "title": "R", "systems": ["ours"], "rows": [{"name": "one", "points": [{"value": 3, "to": 4}]}]},
    {"title": "alone", "rows": []}]}]})");
  ASSERT_TRUE(drawn.ok()) << drawn.status().message();
  EXPECT_THAT(drawn->html, HasSubstr("<title>vllm: 2.5 s +- 100 ms at 2</title>"));
  EXPECT_THAT(drawn->html, HasSubstr("<title>theirs: 700 ms at 2</title>"));
  EXPECT_THAT(drawn->html, HasSubstr(">bound 1.5 s</text>"));
  EXPECT_THAT(drawn->html, HasSubstr("<title>paper 1 s to 2 s</title>"));
  EXPECT_THAT(drawn->html, HasSubstr("<title>ours: 3 to 4 (one)</title>"));
  ASSERT_EQ(drawn->charts.size(), 2u);
  EXPECT_EQ(drawn->charts[1].first, "rows");
  EXPECT_EQ(drawn->charts[0].second.find("<?xml"), 0u);
  EXPECT_THAT(drawn->charts[0].second, Not(HasSubstr("var(")));
}

TEST(ReportPage, WhatIsNoPageIsSaid) {
  for (const char* json :
       {"", "[]", R"({"title": "t"})", R"({"title": 1, "blocks": []})", R"({"title": "", "blocks": [{}]})",
        R"({"title": "", "blocks": [{"charts": [{"title": "no lines"}]}]})",
        R"({"title": "", "blocks": [{"table": {"heads": [], "rows": [[{"unit": "ms"}]]}}]})"}) {
    EXPECT_THAT(draw_page(json).status().message(), HasSubstr("no page: ")) << json;
  }
}

}  // namespace
}  // namespace kvasir
