// The figures of a run under their JSON keys and printed names, and their means over several runs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/bench/config.h"
#include "apps/bench/report.h"
#include "apps/bench/stats.h"

namespace kvasir {

struct Figure {
  std::string key;              // of the JSON file
  std::string label;            // of the printed block; empty: not printed
  std::string header;           // a heading to print before it; empty: none
  bool whole = false;           // a count
  std::optional<double> value;  // nothing: unknown, or not asked for
};
using Figures = std::vector<Figure>;

// Always the same keys in the same order for one config.
Figures figures_of(const Summary& summary, const BenchConfig& config);

struct MeanFigure {
  Figure figure;          // value: the mean over the runs that have one, if any has
  MeanInterval interval;  // of those values
};

// REQUIRES: runs is not empty, and all have the same keys
std::vector<MeanFigure> mean_figures(const std::vector<Figures>& runs);

// The one with this key, or null.
const MeanFigure* find_figure(const std::vector<MeanFigure>& figures, const std::string& key);

}  // namespace kvasir
