#include "apps/bench/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace kvasir {
namespace {

constexpr double kWidth = 560, kHeight = 320, kLeft = 62, kRight = 14, kTop = 30, kBottom = 46;
constexpr double kLegendRow = 18;
constexpr size_t kColours = 8;

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
    for (double t = std::ceil(axis.low / step) * step; t <= axis.high * (1 + 1e-9); t += step)
      ticks.push_back(t);
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
  double top = 0, low = 0, high = 0, least_positive = 0;
  for (const ChartLine& line : chart.lines) {
    for (size_t i = 0; i < line.x.size(); ++i) {
      if (!drawable(line, i)) continue;
      low = any ? std::min(low, line.x[i]) : line.x[i];
      high = any ? std::max(high, line.x[i]) : line.x[i];
      top = std::max(top, line.y[i] + half_of(line, i));
      if (line.x[i] > 0 && (least_positive == 0 || line.x[i] < least_positive)) least_positive = line.x[i];
      any = true;
    }
  }
  x->log = chart.log_x && least_positive > 0;
  x->low = x->log ? least_positive : std::min(low, 0.0);
  x->high = high > x->low ? high : x->low + (x->log ? x->low : 1);
  y->high = chart.y_max > 0 ? chart.y_max : (top > 0 ? top * 1.05 : 1);
  return any;
}

void add_axes(const Chart& chart, const Axis& x, const Axis& y, std::string* out) {
  auto to = std::back_inserter(*out);
  for (double t : ticks_of(y)) {
    fmt::format_to(to, "<line class=\"g\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>", kLeft,
                   kWidth - kRight, y.at(t), y.at(t));
    fmt::format_to(to, "<text class=\"t\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:.4g}</text>", kLeft - 6,
                   y.at(t) + 4, t);
  }
  for (double t : ticks_of(x)) {
    fmt::format_to(to, "<line class=\"g\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{}\" y2=\"{}\"/>", x.at(t),
                   x.at(t), y.to, y.from);
    fmt::format_to(to, "<text class=\"t\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:.4g}</text>",
                   x.at(t), y.from + 16, t);
  }
  fmt::format_to(to, "<text class=\"h\" x=\"{}\" y=\"18\">{}</text>", kLeft, escape_html(chart.title));
  fmt::format_to(to, "<text class=\"t\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                 (kLeft + kWidth - kRight) / 2, y.from + 34, escape_html(chart.x_label));
  fmt::format_to(
      to, "<text class=\"t\" text-anchor=\"middle\" transform=\"translate(13 {:.0f}) rotate(-90)\">{}</text>",
      (y.from + y.to) / 2, escape_html(chart.y_label));
}

void add_line(const ChartLine& line, const Axis& x, const Axis& y, std::string* out) {
  auto to = std::back_inserter(*out);
  const std::string style = fmt::format("style=\"stroke:var(--c{})\"", line.colour % kColours);
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
    if (line.marked) {
      fmt::format_to(std::back_inserter(extras),
                     "<circle r=\"3\" cx=\"{:.1f}\" cy=\"{:.1f}\" style=\"fill:var(--c{})\"/>", px, py,
                     line.colour % kColours);
    }
  }
  if (points.empty()) return;
  points.pop_back();
  fmt::format_to(to, "<polyline class=\"l\" {}{} points=\"{}\"/>{}", style,
                 line.dashed ? " stroke-dasharray=\"5 4\"" : "", points, extras);
}

// Returns the height that the legend takes.
double add_legend(const Chart& chart, double top, std::string* out) {
  double row = 0;
  for (const ChartLine& line : chart.lines) {
    if (line.name.empty()) continue;
    const double y = top + row * kLegendRow;
    fmt::format_to(std::back_inserter(*out),
                   "<line class=\"l\" style=\"stroke:var(--c{})\"{} x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>"
                   "<text class=\"t\" x=\"{}\" y=\"{}\">{}</text>",
                   line.colour % kColours, line.dashed ? " stroke-dasharray=\"5 4\"" : "", kLeft, kLeft + 26,
                   y - 4, y - 4, kLeft + 34, y, escape_html(line.name));
    ++row;
  }
  return row * kLegendRow;
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
    for (const ChartLine& line : chart.lines) add_line(line, x, y, &body);
    legend = add_legend(chart, kHeight + 8, &body);
  } else {
    body = fmt::format(
        "<text class=\"h\" x=\"{}\" y=\"18\">{}</text><text class=\"t\" x=\"{}\" y=\"60\">nothing to "
        "draw</text>",
        kLeft, escape_html(chart.title), kLeft);
  }
  return fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">{}</svg>\n", kWidth,
                     kHeight + legend, escape_html(chart.title), body);
}

}  // namespace kvasir
