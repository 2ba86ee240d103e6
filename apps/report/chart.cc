#include "apps/report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

namespace kvasir {
namespace {

constexpr double kWidth = 560, kHeight = 320, kLeft = 62, kRight = 14, kTop = 30, kBottom = 46;
constexpr double kLegendRow = 18, kCharWidth = 6.2;
constexpr size_t kColours = 7, kDashes = 3, kMarks = 6;
// Points of a line without marks that show their value.
constexpr size_t kMostHovered = 24;
constexpr double kBarRow = 24;
constexpr double kLane = 12;        // of a row
constexpr size_t kMostBeside = 34;  // letters of a row's name

// Okabe and Ito's colours, without the yellow; and lighter ones for a dark ground.
constexpr std::array<const char*, kColours> kLight = {"#0072b2", "#d55e00", "#009e73", "#b5528b",
                                                      "#c98700", "#3f9fd8", "#333333"};
constexpr std::array<const char*, kColours> kDark = {"#4a9fe0", "#ff8a3d", "#2fc79a", "#e39ac4",
                                                     "#f0b63a", "#9bdcff", "#c8c8c8"};
constexpr std::array<const char*, kDashes> kDash = {"", " stroke-dasharray=\"7 3\"",
                                                    " stroke-dasharray=\"2 3\""};

const char* dash_of(size_t system) {
  return kDash[system / kColours % kDashes];
}

// What an axis spans, and where values fall on it.
struct Axis {
  double low = 0, high = 1;
  bool log = false;
  double from = 0, to = 0;  // pixels

  double at(double value) const {
    const double v = log ? std::log10(std::max(value, low)) : value;
    const double a = log ? std::log10(low) : low;
    const double b = log ? std::log10(high) : high;
    return from + (to - from) * std::clamp((v - a) / (b - a), 0.0, 1.0);
  }
};

// 1, 2 or 5 times a power of ten, so that about five of them fill the span.
double nice_step(double span) {
  const double raw = span / 5;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw) return factor * power;
  }
  return 10 * power;
}

std::vector<double> ticks_of(const Axis& axis) {
  std::vector<double> ticks;
  if (!axis.log) {
    const double step = nice_step(axis.high - axis.low);
    // Multiples, so that the one at zero is zero; the sum makes no -0 of it.
    for (double i = std::ceil(axis.low / step); i * step <= axis.high * (1 + 1e-9); ++i)
      ticks.push_back(i * step + 0.0);
    return ticks;
  }
  const double decades = std::log10(axis.high / axis.low);
  for (double p = std::pow(10, std::floor(std::log10(axis.low))); p <= axis.high; p *= 10) {
    for (double factor : {1.0, 2.0, 5.0}) {
      const double t = p * factor;
      if (t >= axis.low && t <= axis.high * (1 + 1e-9) && (factor == 1 || decades < 3)) ticks.push_back(t);
    }
  }
  return ticks;
}

bool drawable(const ChartLine& line, size_t i) {
  return i < line.y.size() && std::isfinite(line.x[i]) && std::isfinite(line.y[i]);
}

double half_of(const ChartLine& line, size_t i) {
  return i < line.half.size() && std::isfinite(line.half[i]) ? line.half[i] : 0;
}

// Returns whether there is anything to draw.
bool fit(const Chart& chart, Axis* x, Axis* y) {
  bool any = false;
  double top = 0, bottom = std::numeric_limits<double>::infinity(), low = 0, high = 0, least_positive = 0;
  for (const ChartBand& band : chart.bands) {
    top = std::max(top, band.high);
    bottom = std::min(bottom, band.low);
  }
  for (const ChartLine& line : chart.lines) {
    for (size_t i = 0; i < line.x.size(); ++i) {
      if (!drawable(line, i)) continue;
      low = any ? std::min(low, line.x[i]) : line.x[i];
      high = any ? std::max(high, line.x[i]) : line.x[i];
      top = std::max(top, line.y[i] + half_of(line, i));
      bottom = std::min(bottom, line.y[i]);
      if (line.x[i] > 0 && (least_positive == 0 || line.x[i] < least_positive)) least_positive = line.x[i];
      any = true;
    }
  }
  // A bound that all lines are well within is seen, unless it would flatten them.
  constexpr double kMostRoom = 3;
  for (const ChartBound& bound : chart.bounds) {
    if (!bound.of_x && bound.value <= kMostRoom * top) top = std::max(top, bound.value);
  }
  x->log = chart.log_x && least_positive > 0;
  x->low = x->log ? least_positive : std::min(low, 0.0);
  x->high = high > x->low ? high : x->low + (x->log ? x->low : 1);
  y->high = chart.y_max > 0 ? chart.y_max : (top > 0 ? top * 1.05 : 1);
  y->log = chart.log_y && any && bottom > 0;
  if (y->log) y->low = bottom / 1.2;
  if (any && bottom < 0) y->low = bottom * 1.05;
  return any;
}

std::string with_commas(double value) {
  std::string digits = fmt::format("{:.0f}", std::abs(value));
  for (auto at = static_cast<ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), ",");
  return value < 0 ? "-" + digits : digits;
}

// Without a unit.
std::string number(double value) {
  const double size = std::abs(value);
  if (size >= 1e9) return fmt::format("{:.4g} G", value / 1e9);
  if (size >= 1e6) return fmt::format("{:.4g} M", value / 1e6);
  if (size >= 9999.5) return with_commas(value);
  return fmt::format("{:.4g}", value);
}

// Of all numbers of an axis: by how much they are divided, and what they then are.
struct Scale {
  double divisor = 1;
  std::string unit;
};

Scale scale_of(AxisUnit unit, double high) {
  switch (unit) {
    case AxisUnit::kMillis:
      return high >= 2000 ? Scale{1000, "s"} : Scale{1, "ms"};
    case AxisUnit::kSeconds:
      return high < 0.1 ? Scale{1e-3, "ms"} : Scale{1, "s"};
    case AxisUnit::kPercent:
      return {1, "%"};
    case AxisUnit::kPlain:
      break;
  }
  return {1, ""};
}

// "P99 TTFT, s"
std::string label_with(const std::string& label, const Scale& scale) {
  if (scale.unit.empty() || scale.unit == "%") return label;
  return label.empty() ? scale.unit : label + ", " + scale.unit;
}

void add_axes(const Chart& chart, const Axis& x, const Axis& y, std::string* out) {
  auto to = std::back_inserter(*out);
  const Scale of_y = scale_of(chart.y_unit, y.high), of_x = scale_of(chart.x_unit, x.high);
  for (double t : ticks_of(y)) {
    fmt::format_to(to, "<line class=\"g\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>", kLeft,
                   kWidth - kRight, y.at(t), y.at(t));
    fmt::format_to(to, "<text class=\"t\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>", kLeft - 6,
                   y.at(t) + 4, y.log ? readable(t, chart.y_unit) : number(t / of_y.divisor));
  }
  for (double t : ticks_of(x)) {
    fmt::format_to(to, "<line class=\"g\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{}\" y2=\"{}\"/>", x.at(t),
                   x.at(t), y.to, y.from);
    // Over several powers of ten each tick has the unit that suits it.
    const std::string text = x.log ? readable(t, chart.x_unit) : number(t / of_x.divisor);
    fmt::format_to(to, "<text class=\"t\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>", x.at(t),
                   y.from + 16, text);
  }
  fmt::format_to(to, "<text class=\"h\" x=\"{}\" y=\"18\">{}</text>", kLeft, escape_html(chart.title));
  fmt::format_to(to, "<text class=\"t\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                 (kLeft + kWidth - kRight) / 2, y.from + 34,
                 escape_html(x.log ? chart.x_label : label_with(chart.x_label, of_x)));
  fmt::format_to(
      to, "<text class=\"t\" text-anchor=\"middle\" transform=\"translate(13 {:.0f}) rotate(-90)\">{}</text>",
      (y.from + y.to) / 2, escape_html(y.log ? chart.y_label : label_with(chart.y_label, of_y)));
}

// Those that lie on the chart.
void add_bounds(const Chart& chart, const Axis& x, const Axis& y, std::string* out) {
  auto to = std::back_inserter(*out);
  for (const ChartBound& bound : chart.bounds) {
    const Axis& axis = bound.of_x ? x : y;
    const std::string name =
        fmt::format("{} {}", bound.name, readable(bound.value, bound.of_x ? chart.x_unit : chart.y_unit));
    if (!bound.of_x && bound.value > axis.high) {
      fmt::format_to(to, "<text class=\"t\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{} ↑</text>",
                     kWidth - kRight - 4, y.to + 12, escape_html(name));
    }
    if (!(bound.value >= axis.low && bound.value <= axis.high)) continue;
    const double at = axis.at(bound.value);
    if (bound.of_x) {
      const bool left = at > (x.from + x.to) / 2;
      fmt::format_to(to,
                     "<path class=\"b\" d=\"M{:.1f} {}V{}\"/><text class=\"t\" x=\"{:.1f}\" y=\"{}\" "
                     "text-anchor=\"{}\">{}</text>",
                     at, y.to, y.from, left ? at - 5 : at + 5, y.to + 12, left ? "end" : "start",
                     escape_html(name));
    } else {
      fmt::format_to(to,
                     "<path class=\"b\" d=\"M{} {:.1f}H{}\"/><text class=\"t\" x=\"{}\" y=\"{:.1f}\" "
                     "text-anchor=\"end\">{}</text>",
                     x.from, at, x.to, x.to - 3, at - 4, escape_html(name));
    }
  }
}

void add_bands(const Chart& chart, const Axis& x, const Axis& y, std::string* out) {
  for (const ChartBand& band : chart.bands) {
    const double top = y.at(band.high), bottom = y.at(band.low);
    std::string name = band.name + " " + readable(band.low, chart.y_unit);
    if (band.high > band.low) name += " to " + readable(band.high, chart.y_unit);
    fmt::format_to(
        std::back_inserter(*out),
        "<rect class=\"a\" style=\"fill:var(--c{0});stroke:var(--c{0})\" x=\"{1:.1f}\" y=\"{2:.1f}\" "
        "width=\"{3:.1f}\" height=\"{4:.1f}\"><title>{5}</title></rect><text class=\"t\" x=\"{6:.1f}\" "
        "y=\"{7:.1f}\">{5}</text>",
        band.system % kColours, x.from, top, x.to - x.from, std::max(bottom - top, 1.5), escape_html(name),
        x.from + 5, top < y.to + 14 ? top + 12 : top - 4);
  }
}

std::string mark(size_t system, double x, double y, bool hollow = false) {
  const std::string style = hollow ? fmt::format("class=\"o\" style=\"stroke:var(--c{})\"", system % kColours)
                                   : fmt::format("style=\"fill:var(--c{})\"", system % kColours);
  switch ((system + system / kColours) % kMarks) {
    case 1:
      return fmt::format("<rect {} x=\"{:.1f}\" y=\"{:.1f}\" width=\"6\" height=\"6\"/>", style, x - 3,
                         y - 3);
    case 2:
      return fmt::format("<path {} d=\"M{:.1f} {:.1f}l4 7h-8z\"/>", style, x, y - 4);
    case 3:
      return fmt::format("<path {} d=\"M{:.1f} {:.1f}l4 4l-4 4l-4-4z\"/>", style, x, y - 4);
    case 4:
      return fmt::format("<path {} d=\"M{:.1f} {:.1f}l-4-7h8z\"/>", style, x, y + 4);
    case 5:
      return fmt::format("<path {} d=\"M{:.1f} {:.1f}h2v-3h3v-2h-3v-3h-2v3h-3v2h3z\"/>", style, x - 1, y + 4);
    default:
      return fmt::format("<circle r=\"3.2\" cx=\"{:.1f}\" cy=\"{:.1f}\" {}/>", x, y, style);
  }
}

std::string hover(const Chart& chart, const ChartLine& line, size_t i, double px, double py) {
  std::string text = line.name.empty() ? "" : line.name + ": ";
  const std::string x = readable(line.x[i], chart.x_unit), y = readable(line.y[i], chart.y_unit);
  text += y;
  if (const double half = half_of(line, i); half > 0) text += " +- " + readable(half, chart.y_unit);
  text += " at " + x;
  return fmt::format("<g class=\"p\"><circle r=\"7\" cx=\"{:.1f}\" cy=\"{:.1f}\"/><title>{}</title></g>", px,
                     py, escape_html(text));
}

void add_line(const Chart& chart, const ChartLine& line, const Axis& x, const Axis& y, std::string* out) {
  auto to = std::back_inserter(*out);
  const std::string style = fmt::format("style=\"stroke:var(--c{})\"", line.system % kColours);
  const size_t every = line.marked ? 1 : 1 + line.x.size() / kMostHovered;
  std::string points, extras;
  for (size_t i = 0; i < line.x.size(); ++i) {
    if (!drawable(line, i)) continue;
    const double px = x.at(line.x[i]), py = y.at(line.y[i]);
    fmt::format_to(std::back_inserter(points), "{:.1f},{:.1f} ", px, py);
    if (const double half = half_of(line, i); half > 0) {
      const double a = y.at(line.y[i] - half), b = y.at(line.y[i] + half);
      fmt::format_to(std::back_inserter(extras),
                     "<path class=\"l\" {} d=\"M{:.1f} {:.1f}V{:.1f}M{:.1f} {:.1f}h8M{:.1f} {:.1f}h8\"/>",
                     style, px, a, b, px - 4, a, px - 4, b);
    }
    if (line.marked || line.hollow) extras += mark(line.system, px, py, line.hollow);
    if (i % every == 0) extras += hover(chart, line, i, px, py);
  }
  if (points.empty()) return;
  points.pop_back();
  if (line.hollow) {
    *out += extras;
    return;
  }
  fmt::format_to(to, "<polyline class=\"l{}\" {}{} points=\"{}\"/>{}", line.faint ? " f" : "", style,
                 dash_of(line.system), points, extras);
}

// In as many columns as the names leave room for. Returns the height that it takes.
double add_legend(const std::vector<ChartLine>& lines, double top, std::string* out) {
  size_t longest = 0, named = 0;
  for (const ChartLine& line : lines) {
    longest = std::max(longest, line.name.size());
    if (!line.name.empty()) ++named;
  }
  const double wanted = 48 + kCharWidth * static_cast<double>(longest);
  const auto columns = static_cast<size_t>(std::clamp((kWidth - 20) / wanted, 1.0, 4.0));
  const double width = (kWidth - 20) / static_cast<double>(columns);
  size_t i = 0;
  for (const ChartLine& line : lines) {
    if (line.name.empty()) continue;
    const size_t row = i / columns;
    const double y = top + static_cast<double>(row) * kLegendRow;
    const double x = 20 + static_cast<double>(i % columns) * width;
    const auto to = std::back_inserter(*out);
    if (!line.hollow) {
      fmt::format_to(to,
                     "<line class=\"l{}\" style=\"stroke:var(--c{})\"{} x1=\"{:.0f}\" x2=\"{:.0f}\" "
                     "y1=\"{}\" y2=\"{}\"/>",
                     line.faint ? " f" : "", line.system % kColours, dash_of(line.system), x, x + 26, y - 4,
                     y - 4);
    }
    fmt::format_to(to, "{}<text class=\"t\" x=\"{:.0f}\" y=\"{}\">{}</text>",
                   line.marked || line.hollow ? mark(line.system, x + 13, y - 4, line.hollow) : "", x + 33, y,
                   escape_html(line.name));
    ++i;
  }
  const size_t rows = (named + columns - 1) / columns;
  return static_cast<double>(rows) * kLegendRow;
}

void add_row_point(const RowChart& chart, const ChartRow& row, const RowPoint& point, const Axis& x, double y,
                   std::string* out) {
  const auto to = std::back_inserter(*out);
  const bool range = point.to > point.value;
  std::string text = point.system < chart.systems.size() ? chart.systems[point.system] + ": " : "";
  text += readable(point.value, chart.unit);
  if (range) text += " to " + readable(point.to, chart.unit);
  if (point.half > 0) text += " +- " + readable(point.half, chart.unit);
  text += " (" + row.name + ")";
  const double at = x.at(point.value);
  if (range) {
    fmt::format_to(
        to,
        "<rect class=\"a\" style=\"fill:var(--c{0});stroke:var(--c{0})\" x=\"{1:.1f}\" y=\"{2:.1f}\" "
        "width=\"{3:.1f}\" height=\"{4}\"><title>{5}</title></rect>",
        point.system % kColours, at, y - 5, x.at(point.to) - at, 10, escape_html(text));
    return;
  }
  if (point.half > 0) {
    const double a = x.at(point.value - point.half), b = x.at(point.value + point.half);
    fmt::format_to(to,
                   "<path class=\"l\" style=\"stroke:var(--c{})\" d=\"M{:.1f} {:.1f}H{:.1f}M{:.1f} "
                   "{:.1f}v6M{:.1f} {:.1f}v6\"/>",
                   point.system % kColours, a, y, b, a, y - 3, b, y - 3);
  }
  *out += mark(point.system, at, y, point.hollow);
  fmt::format_to(to, "<g class=\"p\"><circle r=\"7\" cx=\"{:.1f}\" cy=\"{:.1f}\"/><title>{}</title></g>", at,
                 y, escape_html(text));
}

std::string svg_element(double width, double height, const std::string& title, const std::string& body) {
  return fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">{}</svg>\n", width, height,
                     escape_html(title), body);
}

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

std::string svg_chart(const Chart& chart) {
  Axis x{.from = kLeft, .to = kWidth - kRight};
  Axis y{.from = kHeight - kBottom, .to = kTop};
  std::string body;
  double legend = 0;
  if (fit(chart, &x, &y)) {
    add_axes(chart, x, y, &body);
    add_bands(chart, x, y, &body);
    add_bounds(chart, x, y, &body);
    for (const ChartLine& line : chart.lines) add_line(chart, line, x, y, &body);
    legend = add_legend(chart.lines, kHeight + 8, &body);
  } else {
    body = fmt::format(
        "<text class=\"h\" x=\"{}\" y=\"18\">{}</text><text class=\"t\" x=\"{}\" y=\"60\">nothing to "
        "draw</text>",
        kLeft, escape_html(chart.title), kLeft);
  }
  return svg_element(kWidth, kHeight + legend, chart.title, body);
}

std::string svg_chart(const BarChart& chart) {
  size_t longest = 0;
  double most = 0;
  for (const Bar& bar : chart.bars) {
    longest = std::max(longest, bar.name.size());
    most = std::max({most, bar.value, bar.high});
  }
  const double left = std::min(330.0, 16 + kCharWidth * static_cast<double>(longest));
  Axis x{.low = 0, .high = most > 0 ? most : 1, .from = left, .to = kWidth - 90};
  const double bottom = kTop + 6 + kBarRow * static_cast<double>(chart.bars.size());
  std::string body = fmt::format("<text class=\"h\" x=\"8\" y=\"18\">{}</text>", escape_html(chart.title));
  auto to = std::back_inserter(body);
  const Scale scale = scale_of(chart.unit, x.high);
  for (double t : ticks_of(x)) {
    fmt::format_to(to,
                   "<line class=\"g\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{}\" y2=\"{}\"/><text class=\"t\" "
                   "x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                   x.at(t), x.at(t), kTop, bottom, x.at(t), bottom + 14, number(t / scale.divisor));
  }
  double y = kTop + 4;
  for (const Bar& bar : chart.bars) {
    const std::string value = bar.note.empty() ? readable(bar.value, chart.unit) : bar.note;
    fmt::format_to(to,
                   "<text class=\"t n\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text><rect "
                   "class=\"{}\" x=\"{:.1f}\" "
                   "y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\"><title>{}: {}</title></rect>",
                   left - 6, y + 13, escape_html(bar.name), bar.strong ? "r s" : "r", left, y,
                   std::max(0.0, x.at(bar.value) - left), kBarRow - 7, escape_html(bar.name),
                   escape_html(value));
    double end = x.at(bar.value);
    if (bar.high > bar.low) {
      fmt::format_to(to, "<path class=\"e\" d=\"M{:.1f} {:.1f}H{:.1f}M{:.1f} {:.1f}v8M{:.1f} {:.1f}v8\"/>",
                     x.at(bar.low), y + 8.5, x.at(bar.high), x.at(bar.low), y + 4.5, x.at(bar.high), y + 4.5);
      end = std::max(end, x.at(bar.high));
    }
    fmt::format_to(to, "<text class=\"t n\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", end + 6, y + 13,
                   escape_html(value));
    y += kBarRow;
  }
  fmt::format_to(to, "<text class=\"t\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                 (x.from + x.to) / 2, bottom + 32, escape_html(label_with(chart.x_label, scale)));
  return svg_element(kWidth, bottom + 42, chart.title, body);
}

std::string svg_chart(const RowChart& chart) {
  size_t longest = 0, points = 0;
  double high = 0, low = 0, least = std::numeric_limits<double>::infinity();
  for (const ChartRow& row : chart.rows) {
    longest = std::max(longest, row.name.size());
    for (const RowPoint& point : row.points) {
      high = std::max({high, point.value + point.half, point.to});
      low = std::min(low, point.value - point.half);
      least = std::min(least, point.value);
      ++points;
    }
  }
  // Long names lie above their rows.
  const bool above = longest > kMostBeside;
  const double left = above ? 16 : 20 + kCharWidth * static_cast<double>(longest);
  Axis x{.low = low * 1.05, .high = high > low ? high * 1.05 : 1, .from = left, .to = kWidth - 20};
  x.log = chart.log_x && points > 0 && least > 0;
  if (x.log) x.low = least / 1.3;
  double bottom = kTop + 6;
  std::vector<double> tops;
  for (const ChartRow& row : chart.rows) {
    size_t lanes = 1;
    for (const RowPoint& point : row.points) lanes = std::max(lanes, point.lane + 1);
    tops.push_back(bottom);
    bottom += 8 + kLane * static_cast<double>(lanes) + (above ? kLegendRow - 4 : 0);
  }
  Axis y{.from = bottom, .to = kTop};
  std::string body = fmt::format("<text class=\"h\" x=\"8\" y=\"18\">{}</text>", escape_html(chart.title));
  const auto to = std::back_inserter(body);
  const Scale scale = scale_of(chart.unit, x.high);
  for (double t : ticks_of(x)) {
    fmt::format_to(to,
                   "<line class=\"g\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{}\" y2=\"{}\"/><text class=\"t\" "
                   "x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                   x.at(t), x.at(t), kTop, bottom, x.at(t), bottom + 14,
                   x.log ? readable(t, chart.unit) : number(t / scale.divisor));
  }
  Chart bounds{"", "", "", false, 0, {}};
  bounds.x_unit = chart.unit;
  bounds.bounds = chart.bounds;
  add_bounds(bounds, x, y, &body);
  for (size_t i = 0; i < chart.rows.size(); ++i) {
    const ChartRow& row = chart.rows[i];
    const double first = tops[i] + (above ? kLegendRow - 4 : 0) + kLane / 2 + 3;
    fmt::format_to(to, "<path class=\"g\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>", above ? 8 : left,
                   above ? tops[i] : first, x.to);
    fmt::format_to(to, "<text class=\"t n\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>",
                   above ? 8 : left - 8, above ? tops[i] + 11 : first + 4, above ? "start" : "end",
                   escape_html(row.name));
    for (const RowPoint& point : row.points)
      add_row_point(chart, row, point, x, first + kLane * static_cast<double>(point.lane), &body);
  }
  fmt::format_to(to, "<text class=\"t\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                 (x.from + x.to) / 2, bottom + 32,
                 escape_html(x.log ? chart.x_label : label_with(chart.x_label, scale)));
  std::vector<ChartLine> legend;
  for (size_t i = 0; i < chart.systems.size(); ++i) {
    bool used = false, hollow = false;
    for (const ChartRow& row : chart.rows) {
      for (const RowPoint& point : row.points) {
        used |= point.system == i;
        hollow |= point.system == i && point.hollow;
      }
    }
    if (used) legend.push_back({chart.systems[i], i, false, true, {}, {}, {}, hollow});
  }
  const double below = add_legend(legend, bottom + 52, &body);
  return svg_element(kWidth, bottom + 44 + below, chart.title, body);
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
  for (size_t i = 0; i < kColours; ++i) colours.emplace_back(fmt::format("var(--c{})", i), kLight[i]);
  for (const auto& [name, value] : colours) {
    for (size_t at = out.find(name); at != std::string::npos; at = out.find(name, at + value.size())) {
      out.replace(at, name.size(), value);
    }
  }
  return out;
}

std::string chart_colours(bool dark) {
  std::string out;
  for (size_t i = 0; i < kColours; ++i) out += fmt::format("--c{}:{};", i, dark ? kDark[i] : kLight[i]);
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

std::string readable(double value, AxisUnit unit) {
  switch (unit) {
    case AxisUnit::kMillis:
      return std::abs(value) >= 1000 ? number(value / 1000) + " s" : number(value) + " ms";
    case AxisUnit::kSeconds:
      return std::abs(value) < 0.1 && value != 0 ? number(value * 1000) + " ms" : number(value) + " s";
    case AxisUnit::kPercent:
      return number(value) + " %";
    case AxisUnit::kPlain:
      break;
  }
  return number(value);
}

}  // namespace kvasir
