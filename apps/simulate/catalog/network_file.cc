// Networks as JSON.
#include <exception>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "apps/simulate/catalog/catalog_files.h"

namespace kvasir {

Result<NetworkSpec> parse_network(std::string_view text, const std::string& origin) {
  try {
    const auto json = nlohmann::json::parse(text);
    NetworkSpec out;
    out.name = json.at("name").get<std::string>();
    out.bytes_per_s = json.at("bytes_per_s").get<double>();
    out.efficiency = json.at("efficiency").get<double>();
    out.latency_s = json.at("latency_s").get<double>();
    out.source = json.at("source").get<std::vector<std::string>>();
    if (!(out.bytes_per_s > 0) || !(out.efficiency > 0 && out.efficiency <= 1) || !(out.latency_s >= 0)) {
      throw std::runtime_error(
          "bytes_per_s must be above 0, efficiency above 0 and at most 1, latency_s not negative");
    }
    return out;
  } catch (const std::exception& e) {
    return error(ErrorCode::kCorrupt, "{}: no network as the catalogue has them: {}", origin, e.what());
  }
}

}  // namespace kvasir
