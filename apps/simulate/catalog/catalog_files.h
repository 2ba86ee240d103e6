// The catalogue's files, which the build puts into the program.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/simulate/catalog/network.h"
#include "base/status.h"
#include "exec/sim/device.h"

namespace kvasir {

struct CatalogFile {
  std::string_view path;  // "devices/h100.json"
  std::string_view text;
};
const std::vector<CatalogFile>& catalog_files();

inline constexpr const char* kRecurrentLayers =
    "models with recurrent layers, whose states the simulator does not price yet, are not simulated";
inline constexpr const char* kHeadsOfTwoSizes = "models with heads of two sizes are not simulated";
inline constexpr const char* kSomeLayers =
    "experts in some layers, and not in all but the first ones, which the simulator does not price";

// Reads a device as tools/fit_devices.py writes it. `origin` stands for the path in messages. kCorrupt.
Result<DeviceSpec> parse_device(std::string_view text, const std::string& origin);

// Reads a Hugging Face config.json; weights take two bytes an element. kUnsupported: mixtures of
// experts in some layers only. kCorrupt: no JSON, or a size is missing.
Result<ModelShape> parse_model(std::string_view text, const std::string& origin);

// Reads a network (network.h). kCorrupt.
Result<NetworkSpec> parse_network(std::string_view text, const std::string& origin);

}  // namespace kvasir
