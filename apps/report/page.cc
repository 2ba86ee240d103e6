#include "apps/report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "apps/report/chart.h"

namespace kvasir {
namespace {

constexpr const char* kStyle = R"(
body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;margin:1.5rem auto;max-width:76rem;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}h3{font-size:1rem;margin-top:1.8rem}a{color:var(--c0)}p{max-width:60rem}
.w{overflow-x:auto;margin:.5rem 0}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.85rem}
th,td{border-bottom:1px solid var(--grid);padding:.25rem .55rem;text-align:right;vertical-align:top}
th{font-weight:600;color:var(--dim)}td{white-space:nowrap}
th.s,td.s{text-align:left}td.x{text-align:left;white-space:normal;overflow-wrap:anywhere;min-width:7rem;max-width:26rem}
tr.b td{font-weight:600;background:var(--mark)}
.c{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr));gap:1rem 1.5rem;align-items:start}
svg{width:100%;height:auto;max-width:46rem}.phone{display:none;max-width:28rem}
@media(max-width:34rem){.wide{display:none}.phone{display:block}}
summary{cursor:pointer;font-weight:600;margin:1rem 0}p.n{color:var(--dim)}
ul{columns:26rem;padding-left:1.2rem}pre{overflow-x:auto;font-size:.8rem}
@media print{body{max-width:none}details{display:block}}
)";

std::string cell(const char* tag, const char* kind, const std::string& text) {
  return fmt::format("<{0}{1}>{2}</{0}>", tag, kind, text.empty() ? "&ndash;" : escape_html(text));
}

}  // namespace

Page::Page(const std::string& title) {
  const std::string safe = escape_html(title);
  text_ =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">\n"
      "<title>" +
      safe + "</title><style>:root{--bg:#fff;--fg:#1b1f24;--dim:#57606a;--grid:#d8dee4;--mark:#eef5fb;" +
      chart_colours(false) +
      "}\n@media(prefers-color-scheme:dark){:root{--bg:#0f1216;--fg:#e6eaef;--dim:#9aa5b1;--grid:#2b323a;"
      "--mark:#17222d;" +
      chart_colours(true) + "}}" + kStyle + chart_style() + "</style></head><body><main>\n<h1>" + safe +
      "</h1>\n";
}

void Page::heading(const std::string& text, const std::string& id, bool small) {
  text_ += fmt::format("<{0}{1}>{2}</{0}>\n", small ? "h3" : "h2",
                       id.empty() ? "" : fmt::format(" id=\"{}\"", escape_html(id)), escape_html(text));
}

void Page::paragraph(const std::string& text, bool dim) {
  text_ += fmt::format("<p{}>{}</p>\n", dim ? " class=\"n\"" : "", escape_html(text));
}

void Page::links(const std::vector<std::pair<std::string, std::string>>& links) {
  text_ += "<ul>";
  for (const auto& [name, target] : links) {
    text_ += fmt::format("<li><a href=\"{}\">{}</a></li>\n", escape_html(target), escape_html(name));
  }
  text_ += "</ul>\n";
}

void Page::printed(const std::string& text) {
  text_ += "<pre tabindex=\"0\">";
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    text_ += escape_html(std::string_view(text).substr(begin, end - begin)) + "\n";
    begin = end + 1;
  }
  text_ += "</pre>\n";
}

void Page::table(const PageTable& table) {
  // A wide one is scrolled, by keys, too.
  text_ += fmt::format("<div class=\"w\" tabindex=\"0\" role=\"region\" aria-label=\"Table {}\"><table><tr>",
                       ++tables_);
  for (size_t i = 0; i < table.heads.size(); ++i) {
    const bool name = table.texts || i < table.names;
    text_ += fmt::format("<th{}>{}</th>", name ? " class=\"s\"" : "", escape_html(table.heads[i]));
  }
  text_ += "</tr>\n";
  for (size_t r = 0; r < table.rows.size(); ++r) {
    const bool strong = std::find(table.strong.begin(), table.strong.end(), r) != table.strong.end();
    text_ += strong ? "<tr class=\"b\">" : "<tr>";
    for (size_t i = 0; i < table.rows[r].size(); ++i) {
      const char* kind = table.texts ? " class=\"x\"" : i < table.names ? " class=\"s\"" : "";
      text_ += cell("td", kind, table.rows[r][i]);
    }
    text_ += "</tr>\n";
  }
  text_ += "</table></div>\n";
}

void Page::charts(const std::vector<DrawnChart>& charts) {
  text_ += "<div class=\"c\">\n";
  for (const DrawnChart& chart : charts) text_ += "<div>" + chart.wide + chart.phone + "</div>\n";
  text_ += "</div>\n";
}

void Page::fold(const std::string& name, bool open) {
  text_ += fmt::format("<details{}><summary>{}</summary>\n", open ? " open" : "", escape_html(name));
}

void Page::fold_end() {
  text_ += "</details>\n";
}

void Page::settings(const std::vector<std::pair<std::string, std::string>>& settings) {
  PageTable out;
  out.texts = true;
  for (const auto& [name, value] : settings) out.rows.push_back({name, value});
  table(out);
}

std::string file_name_of(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!out.empty() && out.back() != '-') {
      out += '-';
    }
  }
  while (!out.empty() && out.back() == '-') out.pop_back();
  return out;
}

}  // namespace kvasir
