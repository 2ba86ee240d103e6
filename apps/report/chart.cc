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

constexpr double kWidth = 560, kPhoneWidth = 312, kHeight = 320, kLeft = 62, kRight = 14, kTop = 30,
                 kBottom = 46;
constexpr double kLegendRow = 18, kCharWidth = 6.2, kTitleRow = 17, kTitleChar = 7.4;
constexpr size_t kColours = kChartColours, kDashes = 3, kMarks = 6;
// Points of a line without marks that show their value.
constexpr size_t kMostHovered = 24;
constexpr double kBarRow = 24;
constexpr double kLane = 12;          // of a row
constexpr double kMostBeside = 0.42;  // of the width, for the names of rows and bars

constexpr std::array<const char*, kDashes> kDash = {"", " stroke-dasharray=\"7 3\"",
                                                    " stroke-dasharray=\"2 3\""};

const char* dash_of(size_t system) {
  return kDash[system / kColours % kDashes];
}

// In as many lines as the width asks for.
std::vector<std::string> wrapped(const std::string& text, double width, double letter) {
  const auto most = static_cast<size_t>(std::max(1.0, width / letter));
  std::vector<std::string> lines;
  std::string rest = text;
  while (rest.size() > most) {
    const size_t space = rest.rfind(' ', most);
    if (space == std::string::npos || space == 0) break;
    lines.push_back(rest.substr(0, space));
    rest.erase(0, space + 1);
  }
  lines.push_back(rest);
  return lines;
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

// The title, in lines, from x on. Returns how much higher than usual it is.
double add_title(const std::string& title, double x, double width, std::string* out) {
  double y = 18;
  for (const std::string& line : wrapped(title, width - x - 4, kTitleChar)) {
    fmt::format_to(std::back_inserter(*out), "<text class=\"h\" x=\"{}\" y=\"{}\">{}</text>", x, y,
                   escape_html(line));
    y += kTitleRow;
  }
  return y - kTitleRow - 18;
}

// Vertical lines at the ticks, and below them the numbers for which there is room: where it is too little for
// those of a logarithmic axis, powers of ten alone.
void add_x_ticks(const Axis& x, double top, double bottom, double below, AxisUnit unit, const Scale& scale,
                 std::string* out) {
  const auto to = std::back_inserter(*out);
  // Over several powers of ten each tick has the unit that suits it.
  const auto text_of = [&](double t) { return x.log ? readable(t, unit) : number(t / scale.divisor); };
  const auto half_of_text = [&](double t) { return kCharWidth * static_cast<double>(text_of(t).size()) / 2; };
  const std::vector<double> ticks = ticks_of(x);
  bool crowded = false;
  for (size_t i = 1; i < ticks.size(); ++i) {
    crowded |= x.at(ticks[i - 1]) + half_of_text(ticks[i - 1]) > x.at(ticks[i]) - half_of_text(ticks[i]);
  }
  double free = -kWidth;
  for (double t : ticks) {
    fmt::format_to(to, "<line class=\"g\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{}\" y2=\"{}\"/>", x.at(t),
                   x.at(t), top, bottom);
    const double power = std::log10(t);
    if (x.log && crowded && std::abs(power - std::round(power)) > 1e-6) continue;
    const std::string text = text_of(t);
    const double half = half_of_text(t);
    if (x.at(t) - half < free) continue;
    free = x.at(t) + half;
    fmt::format_to(to, "<text class=\"t\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>", x.at(t),
                   below, text);
  }
}

void add_axes(const Chart& chart, const Axis& x, const Axis& y, std::string* out) {
  auto to = std::back_inserter(*out);
  const Scale of_y = scale_of(chart.y_unit, y.high), of_x = scale_of(chart.x_unit, x.high);
  for (double t : ticks_of(y)) {
    fmt::format_to(to, "<line class=\"g\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>", kLeft, x.to,
                   y.at(t), y.at(t));
    fmt::format_to(to, "<text class=\"t\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>", kLeft - 6,
                   y.at(t) + 4, y.log ? readable(t, chart.y_unit) : number(t / of_y.divisor));
  }
  add_x_ticks(x, y.to, y.from, y.from + 16, chart.x_unit, of_x, out);
  fmt::format_to(to, "<text class=\"t\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                 (x.from + x.to) / 2, y.from + 34,
                 escape_html(x.log ? chart.x_label : label_with(chart.x_label, of_x)));
  fmt::format_to(
      to, "<text class=\"t\" text-anchor=\"middle\" transform=\"translate(13 {:.0f}) rotate(-90)\">{}</text>",
      (y.from + y.to) / 2, escape_html(y.log ? chart.y_label : label_with(chart.y_label, of_y)));
}

// Of those that lie beyond the chart the names, with arrows.
void add_bounds(const Chart& chart, const Axis& x, const Axis& y, std::string* out) {
  auto to = std::back_inserter(*out);
  int outside = 0;
  for (const ChartBound& bound : chart.bounds) {
    const Axis& axis = bound.of_x ? x : y;
    const std::string name =
        fmt::format("{} {}", bound.name, readable(bound.value, bound.of_x ? chart.x_unit : chart.y_unit));
    if (bound.value > axis.high || bound.value < axis.low) {
      const bool above = bound.value > axis.high;
      const double row = 12 + 13 * outside++;
      const bool at_end = !bound.of_x || above;
      fmt::format_to(to, "<text class=\"t\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{} {}</text>",
                     at_end ? x.to - 4 : x.from + 4, !bound.of_x && !above ? y.from - row + 6 : y.to + row,
                     at_end ? "end" : "start", escape_html(name),
                     bound.of_x ? (above ? "→" : "←") : (above ? "↑" : "↓"));
      continue;
    }
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
double add_legend(const std::vector<ChartLine>& lines, double top, double width_of_all, std::string* out) {
  size_t longest = 0, named = 0;
  for (const ChartLine& line : lines) {
    longest = std::max(longest, line.name.size());
    if (!line.name.empty()) ++named;
  }
  const double wanted = 48 + kCharWidth * static_cast<double>(longest);
  const auto columns = static_cast<size_t>(std::clamp((width_of_all - 20) / wanted, 1.0, 4.0));
  const double width = (width_of_all - 20) / static_cast<double>(columns);
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
  return fmt::format("<svg class=\"{}\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">{}</svg>\n",
                     width < kWidth ? "phone" : "wide", width, height, escape_html(title), body);
}

std::string draw(const Chart& chart, double width) {
  std::string title;
  const double from = width < kWidth ? 8 : kLeft, more = add_title(chart.title, from, width, &title);
  const double height = kHeight + more;
  Axis x{.from = kLeft, .to = width - kRight};
  Axis y{.from = height - kBottom, .to = kTop + more};
  std::string body;
  double legend = 0;
  if (fit(chart, &x, &y)) {
    add_axes(chart, x, y, &body);
    body += title;
    add_bands(chart, x, y, &body);
    add_bounds(chart, x, y, &body);
    for (const ChartLine& line : chart.lines) add_line(chart, line, x, y, &body);
    legend = add_legend(chart.lines, height + 8, width, &body);
  } else {
    body = title + fmt::format("<text class=\"t\" x=\"{}\" y=\"{}\">nothing to draw</text>", from, 60 + more);
  }
  return svg_element(width, height + legend, chart.title, body);
}

std::string draw(const BarChart& chart, double width) {
  size_t longest = 0;
  double most = 0;
  for (const Bar& bar : chart.bars) {
    longest = std::max(longest, bar.name.size());
    most = std::max({most, bar.value, bar.high});
  }
  const double names = 16 + kCharWidth * static_cast<double>(longest);
  // Long names lie above their bars.
  const bool above = width < kWidth && names > kMostBeside * width;
  const double left = above ? 8 : std::min(330.0, names);
  const double row_height = kBarRow + (above ? kLegendRow - 3 : 0);
  std::string body;
  const double top = kTop + add_title(chart.title, 8, width, &body);
  Axis x{.low = 0, .high = most > 0 ? most : 1, .from = left, .to = width - 90};
  const double bottom = top + 6 + row_height * static_cast<double>(chart.bars.size());
  auto to = std::back_inserter(body);
  const Scale scale = scale_of(chart.unit, x.high);
  add_x_ticks(x, top, bottom, bottom + 14, AxisUnit::kPlain, scale, &body);
  double y = top + 4;
  for (const Bar& bar : chart.bars) {
    const std::string value = bar.note.empty() ? readable(bar.value, chart.unit) : bar.note;
    fmt::format_to(to,
                   "<text class=\"t n\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text><rect "
                   "class=\"{}\" x=\"{:.1f}\" "
                   "y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\"><title>{}: {}</title></rect>",
                   above ? left : left - 6, above ? y + 10 : y + 13, above ? "start" : "end",
                   escape_html(bar.name), bar.strong ? "r s" : "r", left, above ? y + kLegendRow - 3 : y,
                   std::max(0.0, x.at(bar.value) - left), kBarRow - 7, escape_html(bar.name),
                   escape_html(value));
    if (above) y += kLegendRow - 3;
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
  return svg_element(width, bottom + 42, chart.title, body);
}

std::string draw(const RowChart& chart, double width) {
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
  const double names = 20 + kCharWidth * static_cast<double>(longest);
  const bool above = names > kMostBeside * width;
  const double left = above ? 16 : names;
  Axis x{.low = low * 1.05, .high = high > low ? high * 1.05 : 1, .from = left, .to = width - 20};
  x.log = chart.log_x && points > 0 && least > 0;
  if (x.log) x.low = least / 1.3;
  std::string body;
  const double top = kTop + add_title(chart.title, 8, width, &body);
  double bottom = top + 6;
  std::vector<double> tops;
  for (const ChartRow& row : chart.rows) {
    size_t lanes = 1;
    for (const RowPoint& point : row.points) lanes = std::max(lanes, point.lane + 1);
    tops.push_back(bottom);
    bottom += 8 + kLane * static_cast<double>(lanes) + (above ? kLegendRow - 4 : 0);
  }
  Axis y{.from = bottom, .to = top};
  const auto to = std::back_inserter(body);
  const Scale scale = scale_of(chart.unit, x.high);
  add_x_ticks(x, top, bottom, bottom + 14, chart.unit, scale, &body);
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
  const double below = add_legend(legend, bottom + 52, width, &body);
  return svg_element(width, bottom + 44 + below, chart.title, body);
}

}  // namespace

DrawnChart drawn(const Chart& chart) {
  return {draw(chart, kWidth), draw(chart, kPhoneWidth)};
}

DrawnChart drawn(const BarChart& chart) {
  return {draw(chart, kWidth), draw(chart, kPhoneWidth)};
}

DrawnChart drawn(const RowChart& chart) {
  return {draw(chart, kWidth), draw(chart, kPhoneWidth)};
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
