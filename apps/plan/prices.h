// What devices cost, in a table of the user's.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace kvasir {

// By device, an hour, in the order of the file and in whatever money it counts.
using Prices = std::vector<std::pair<std::string, double>>;

// A map of devices to prices, in YAML, of which JSON is a part: {h100: 2.5, "a100-40g": 1.1}. Devices are
// names of the catalogue, or files. kInvalidArgument: one line with the place. kNotFound: no such file.
Result<Prices> read_prices(const std::string& path);
Result<Prices> parse_prices(const std::string& text, const std::string& path);

}  // namespace kvasir
