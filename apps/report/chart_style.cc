// The colours and lines of charts, and charts as files of their own.
#include <fmt/format.h>

#include <array>
#include <utility>

#include "apps/report/chart.h"

namespace kvasir {
namespace {

// Okabe and Ito's colours, without the yellow; and lighter ones for a dark ground.
constexpr std::array<const char*, kChartColours> kLight = {"#0072b2", "#d55e00", "#009e73", "#b5528b",
                                                           "#c98700", "#3f9fd8", "#333333"};
constexpr std::array<const char*, kChartColours> kDark = {"#4a9fe0", "#ff8a3d", "#2fc79a", "#e39ac4",
                                                          "#f0b63a", "#9bdcff", "#c8c8c8"};

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string svg_file(const std::string& svg) {
  const std::string tag = "<svg ";
  const size_t open = svg.find('>');
  std::string out =
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" "
      "font-family=\"Helvetica,Arial,sans-serif\" ";
  out += svg.substr(tag.size(), open + 1 - tag.size());
  out += "<style>" + chart_style() + "</style>" + svg.substr(open + 1);
  // Programs that make PDF of it know no variables.
  std::vector<std::pair<std::string, std::string>> colours = {{"var(--fg)", "#000000"},
                                                              {"var(--dim)", "#333333"},
                                                              {"var(--grid)", "#dddddd"},
                                                              {"var(--bg)", "#ffffff"}};
  for (size_t i = 0; i < kChartColours; ++i) colours.emplace_back(fmt::format("var(--c{})", i), kLight[i]);
  for (const auto& [name, value] : colours) {
    for (size_t at = out.find(name); at != std::string::npos; at = out.find(name, at + value.size())) {
      out.replace(at, name.size(), value);
    }
  }
  return out;
}

std::string chart_colours(bool dark) {
  std::string out;
  for (size_t i = 0; i < kChartColours; ++i) out += fmt::format("--c{}:{};", i, dark ? kDark[i] : kLight[i]);
  return out;
}

std::string chart_style() {
  return "svg "
         "text{fill:var(--fg)}.t{font-size:11px;fill:var(--dim)!important}.h{font-size:13px;font-weight:600}"
         ".n{fill:var(--fg)!important}.g{stroke:var(--grid);stroke-width:1}.l{fill:none;stroke-width:1.8}"
         ".f{stroke-width:1.2;opacity:.55}.b{fill:none;stroke:var(--fg);stroke-width:1.2;stroke-dasharray:3 "
         "3}"
         ".p circle{fill:transparent}.p:hover circle{fill:var(--fg);opacity:.3}.r{fill:var(--c5);opacity:.55}"
         ".o{fill:var(--bg);stroke-width:1.8}.a{fill-opacity:.18;stroke-opacity:.6;stroke-width:1}"
         ".r.s{fill:var(--c0);opacity:1}.e{fill:none;stroke:var(--fg);stroke-width:1.2}";
}

}  // namespace kvasir
