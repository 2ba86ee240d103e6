// Charts as SVG, for the pages of page.h and, alone, for papers. Twenty systems can be told apart: by seven
// colours that people with a colour-blindness can tell, three kinds of dashes, and marks. Values appear where
// the pointer rests.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

constexpr size_t kChartColours = 7;

// What the numbers of an axis are, and so how people write them.
enum class AxisUnit {
  kPlain,    // 12,000 or 2.5 M
  kMillis,   // as ms, or as s where they are large
  kSeconds,  // likewise
  kPercent
};

struct ChartLine {
  std::string name;     // in the legend; empty: not there
  size_t system = 0;    // whose it is: colour, dashes and mark
  bool faint = false;   // another line of the same system
  bool marked = false;  // a mark on every point
  std::vector<double> x, y;
  std::vector<double> half;  // of an interval around each y; empty: none
  bool hollow = false;       // what another source says of it: marks without a filling, and no line
};

// A bound, drawn across the chart.
struct ChartBound {
  double value = 0;
  std::string name;
  bool of_x = false;  // else of y
};

// What another source says of all of the chart: a range of y, or a single one.
struct ChartBand {
  double low = 0, high = 0;
  std::string name;
  size_t system = 0;
};

struct Chart {
  std::string title, x_label, y_label;
  bool log_x = false;  // points at or below zero are then drawn at the left edge
  double y_max = 0;    // 0: of the values
  std::vector<ChartLine> lines;
  AxisUnit x_unit = AxisUnit::kPlain, y_unit = AxisUnit::kPlain;
  std::vector<ChartBound> bounds = {};
  std::vector<ChartBand> bands = {};
  bool log_y = false;  // only if all values are above zero
};

// Lengths side by side, each with its name.
struct Bar {
  std::string name;
  double value = 0;
  double low = 0, high = 0;  // of an interval; both 0: none
  bool strong = false;       // one of those that the chart is about
  std::string note = {};     // in place of the value
};
struct BarChart {
  std::string title, x_label;
  std::vector<Bar> bars;
  AxisUnit unit = AxisUnit::kPlain;
};

// Points of several systems, row by row.
struct RowPoint {
  double value = 0;
  double to = 0;    // the end of a range that begins at the value; below it: there is none
  double half = 0;  // of an interval
  size_t system = 0;
  bool hollow = false;  // what another source says
  size_t lane = 0;      // those of one lane lie on one line
};
struct ChartRow {
  std::string name;
  std::vector<RowPoint> points;
};
struct RowChart {
  std::string title, x_label;
  std::vector<std::string> systems;  // their names; the legend has those of points
  std::vector<ChartRow> rows;
  AxisUnit unit = AxisUnit::kPlain;
  bool log_x = false;  // only if all values are above zero
  std::vector<ChartBound> bounds = {};
};

// The same chart as an <svg> element for wide pages and files, and as one for phones, with letters of the
// same size and less of everything else. One without points says so; values that are not finite are left out.
struct DrawnChart {
  std::string wide, phone;
};
DrawnChart drawn(const Chart& chart);
DrawnChart drawn(const BarChart& chart);
DrawnChart drawn(const RowChart& chart);

// The same as a file of its own, with its colours, black on white.
std::string svg_file(const std::string& svg);

// Of pages and files: the colours and lines of charts. `dark`: those for a dark ground.
std::string chart_colours(bool dark);
std::string chart_style();

// A number as an axis in that unit writes it, with its unit if it has one: "1.5 s", "12,000", "40 %".
std::string readable(double value, AxisUnit unit = AxisUnit::kPlain);

// Text made safe between tags and inside quoted attributes.
std::string escape_html(std::string_view text);

}  // namespace kvasir
