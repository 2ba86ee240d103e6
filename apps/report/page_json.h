// Pages as JSON, so that programs that are not C++ have the one look of all reports.
//
// {"title": "...", "blocks": [BLOCK, ...]}. A block has one of
//   "heading": "...", "id": "..." where links lead to, "small": true
//   "text": "...", "dim": true
//   "links": [["name", "#id"], ...]
//   "printed": "what a program printed"
//   "table": {"heads": [...], "names": 1, "texts": true, "rows": [[CELL, ...], ...], "strong": [row, ...]}
//   "charts": [CHART, ...]
//   "fold": "name", "open": true, "blocks": [BLOCK, ...]
// A cell is a text, null, or a number with its unit: {"value": 1.5, "to": 2, "half": 0.1, "unit": "ms"}; it
// may have "before": a text. A chart is
//   {"file": "name", "title": "...", "x": "label", "y": "label", "unit": "ms", "log_x": true, "log_y": true,
//   "y_max": 100,
//    "bounds": [{"name": "...", "value": 1}], "bands": [{"name": "...", "low": 1, "high": 2, "system": 0}],
//    "lines": [{"name": "...", "system": 0, "hollow": true, "x": [...], "y": [...], "half": [...]}]}, or has
//    in place of lines
//   "systems": ["...", ...], "rows": [{"name": "...", "points": [{"value": 1, "to": 2, "half": 0.1, "system":
//   0,
//    "hollow": true, "lane": 0}]}]; "unit" and "bounds" are then of x.
// Units: "", "ms", "s" and "%".
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace kvasir {

struct DrawnPage {
  std::string html;
  std::vector<std::pair<std::string, std::string>> charts;  // "file" of those that have one, and an SVG file
};

// kInvalidArgument: it is none such.
Result<DrawnPage> draw_page(const std::string& json);

}  // namespace kvasir
