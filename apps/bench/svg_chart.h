// Line charts as SVG, drawn for a page that has the colours --c0 to --c7, --fg, --dim and --grid.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

struct ChartLine {
  std::string name;  // in the legend; empty: not there
  size_t colour = 0;
  bool dashed = false;
  bool marked = false;  // a dot on every point
  std::vector<double> x, y;
  std::vector<double> half;  // of an interval around each y; empty: none
};

struct Chart {
  std::string title, x_label, y_label;
  bool log_x = false;  // points at or below zero are then drawn at the left edge
  double y_max = 0;    // 0: of the values
  std::vector<ChartLine> lines;
};

// An <svg> element. A chart without points says so. Values that are not finite are left out.
std::string svg_chart(const Chart& chart);

// Text made safe between tags and inside quoted attributes.
std::string escape_html(std::string_view text);

}  // namespace kvasir
