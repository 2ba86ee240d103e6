// Networks between simulated instances, by name or in a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvasir {

// The way between two cards. Each card has its own, in each direction.
struct NetworkSpec {
  std::string name;
  double bytes_per_s = 0;  // nominal
  double efficiency = 1;   // the share of it that a transfer reaches
  double latency_s = 0;    // of a message, from the one's memory to the other's
  std::vector<std::string> source;
  double usable() const { return bytes_per_s * efficiency; }
};

// In the order of the alphabet.
std::vector<std::string> network_names();
// A name of the catalogue, whatever its case, or the path of a file like the catalogue's own. kNotFound lists
// what there is, in one line. kCorrupt: the file is no such one.
Result<NetworkSpec> find_network(const std::string& name_or_path);

}  // namespace kvasir
