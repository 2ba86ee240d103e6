#include "apps/report/page_json.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "apps/report/chart.h"
#include "apps/report/page.h"

namespace kvasir {
namespace {

using Json = nlohmann::json;

// The functions here throw what the library does where a member is missing or of another kind.

AxisUnit unit_of(const Json& json) {
  const std::string name = json.value("unit", "");
  return name == "ms"  ? AxisUnit::kMillis
         : name == "s" ? AxisUnit::kSeconds
         : name == "%" ? AxisUnit::kPercent
                       : AxisUnit::kPlain;
}

std::string cell_of(const Json& cell) {
  if (cell.is_null()) return "";
  if (cell.is_string()) return cell.get<std::string>();
  const AxisUnit unit = unit_of(cell);
  std::string text = cell.value("before", "") + readable(cell.at("value").get<double>(), unit);
  if (cell.contains("to")) text += " to " + readable(cell.at("to").get<double>(), unit);
  if (cell.contains("half")) text += " \u00b1 " + readable(cell.at("half").get<double>(), unit);
  return text;
}

PageTable table_of(const Json& json) {
  PageTable out;
  out.heads = json.at("heads").get<std::vector<std::string>>();
  out.names = json.value("names", size_t{1});
  out.texts = json.value("texts", false);
  out.strong = json.value("strong", std::vector<size_t>());
  for (const Json& row : json.at("rows")) {
    out.rows.emplace_back();
    for (const Json& cell : row) out.rows.back().push_back(cell_of(cell));
  }
  return out;
}

std::vector<ChartBound> bounds_of(const Json& json, bool of_x) {
  std::vector<ChartBound> out;
  for (const Json& bound : json.value("bounds", Json::array()))
    out.push_back({bound.at("value").get<double>(), bound.at("name").get<std::string>(), of_x});
  return out;
}

DrawnChart chart_of_rows(const Json& json) {
  RowChart out;
  out.title = json.at("title").get<std::string>();
  out.x_label = json.value("x", "");
  out.systems = json.value("systems", std::vector<std::string>());
  out.unit = unit_of(json);
  out.log_x = json.value("log_x", false);
  out.bounds = bounds_of(json, /*of_x=*/true);
  for (const Json& row : json.at("rows")) {
    out.rows.push_back({row.at("name").get<std::string>(), {}});
    for (const Json& point : row.at("points")) {
      out.rows.back().points.push_back({point.at("value").get<double>(), point.value("to", 0.0),
                                        point.value("half", 0.0), point.value("system", size_t{0}),
                                        point.value("hollow", false), point.value("lane", size_t{0})});
    }
  }
  return drawn(out);
}

DrawnChart chart_of_lines(const Json& json) {
  Chart out;
  out.title = json.at("title").get<std::string>();
  out.x_label = json.value("x", "");
  out.y_label = json.value("y", "");
  out.y_unit = unit_of(json);
  out.log_x = json.value("log_x", false);
  out.log_y = json.value("log_y", false);
  out.y_max = json.value("y_max", 0.0);
  out.bounds = bounds_of(json, /*of_x=*/false);
  for (const Json& band : json.value("bands", Json::array())) {
    out.bands.push_back({band.at("low").get<double>(), band.at("high").get<double>(),
                         band.at("name").get<std::string>(), band.value("system", size_t{0})});
  }
  for (const Json& line : json.at("lines")) {
    out.lines.push_back({line.at("name").get<std::string>(), line.value("system", size_t{0}), false, true,
                         line.at("x").get<std::vector<double>>(), line.at("y").get<std::vector<double>>(),
                         line.value("half", std::vector<double>()), line.value("hollow", false)});
  }
  return drawn(out);
}

void add_blocks(const Json& blocks, Page& page, DrawnPage& out) {
  for (const Json& block : blocks) {
    if (block.contains("heading")) {
      page.heading(block["heading"].get<std::string>(), block.value("id", ""), block.value("small", false));
    } else if (block.contains("text")) {
      page.paragraph(block["text"].get<std::string>(), block.value("dim", false));
    } else if (block.contains("links")) {
      page.links(block["links"].get<std::vector<std::pair<std::string, std::string>>>());
    } else if (block.contains("printed")) {
      page.printed(block["printed"].get<std::string>());
    } else if (block.contains("table")) {
      page.table(table_of(block["table"]));
    } else if (block.contains("charts")) {
      std::vector<DrawnChart> charts;
      for (const Json& chart : block["charts"]) {
        charts.push_back(chart.contains("rows") ? chart_of_rows(chart) : chart_of_lines(chart));
        if (chart.contains("file"))
          out.charts.emplace_back(chart["file"].get<std::string>(), svg_file(charts.back().wide));
      }
      page.charts(charts);
    } else {
      page.fold(block.at("fold").get<std::string>(), block.value("open", false));
      add_blocks(block.at("blocks"), page, out);
      page.fold_end();
    }
  }
}

}  // namespace

Result<DrawnPage> draw_page(const std::string& json) {
  try {
    const Json parsed = Json::parse(json);
    DrawnPage out;
    Page page(parsed.at("title").get<std::string>());
    add_blocks(parsed.at("blocks"), page, out);
    out.html = page.text();
    return out;
  } catch (const Json::exception& e) {
    return error(ErrorCode::kInvalidArgument, "no page: {}", e.what());
  }
}

}  // namespace kvasir
