// Devices as JSON.
#include <cmath>
#include <exception>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "apps/simulate/catalog/catalog_files.h"

namespace kvasir {
namespace {

using Json = nlohmann::json;

// REQUIRES (else std::exception): the shape that fit_devices.py writes.
Curve curve_of(const Json& json) {
  Curve out{json.at("x").get<std::vector<double>>(), json.at("log2").get<std::vector<double>>()};
  if (out.x.empty() || out.x.size() != out.y.size())
    throw std::runtime_error("a curve needs as many x as log2");
  for (size_t i = 1; i < out.x.size(); ++i) {
    if (!(out.x[i] > out.x[i - 1])) throw std::runtime_error("a curve's x must ascend");
  }
  for (const double x : out.x) {
    if (x * 2 != std::floor(x * 2)) throw std::runtime_error("a curve's x must be multiples of a half");
  }
  return out;
}

KernelCoefficients kernel_of(const Json& json, const std::vector<std::string>& flop_curves,
                             const std::vector<std::string>& byte_curves) {
  KernelCoefficients out;
  out.launch_s = json.at("launch_s").get<double>();
  out.unit_s = json.value("unit_s", 0.0);
  out.sharpness = json.value("sharpness", 6.0);
  if (!(out.launch_s >= 0) || !(out.unit_s >= 0) || !(out.sharpness >= 1)) {
    throw std::runtime_error("launch_s and unit_s must not be negative, sharpness at least 1");
  }
  for (const std::string& name : flop_curves)
    out.flop_rate.push_back(curve_of(json.at("flop_rate").at(name)));
  for (const std::string& name : byte_curves)
    out.byte_rate.push_back(curve_of(json.at("byte_rate").at(name)));
  return out;
}

DeviceSpec device_of(const Json& json) {
  DeviceSpec out;
  out.name = json.at("name").get<std::string>();
  out.memory_bytes = json.at("memory_bytes").get<uint64_t>();
  out.memory_bytes_per_s = json.at("memory_bytes_per_s").get<double>();
  out.flops = json.at("flops").get<double>();
  const Json& pcie = json.at("pcie");
  out.pcie = {pcie.at("bytes_per_s").get<double>(), pcie.at("efficiency").get<double>(),
              pcie.at("link_share").get<double>()};
  if (!(out.pcie.usable() > 0) || !(out.memory_bytes_per_s > 0) || out.memory_bytes == 0) {
    throw std::runtime_error("memory, bandwidth and PCIe must be above 0");
  }
  out.source = json.at("source").get<std::vector<std::string>>();
  for (const auto& [kernel, e] : json.at("fit").items()) {
    out.fit[kernel] = {e.at("points").get<uint32_t>(), e.at("mean_percent").get<double>(),
                       e.at("p95_percent").get<double>(), e.at("held_out_mean_percent").get<double>()};
  }
  out.layer_factor = json.at("layer_factor").get<double>();
  out.gemm = kernel_of(json.at("gemm"), {"rows", "outputs", "depth"}, {"weights", "rows"});
  const Json& prefill = json.at("prefill_attention");
  out.prefill_attention = kernel_of(prefill, {"rows", "elements", "prefix"}, {});
  out.prefill_ceiling_log2 = prefill.at("ceiling_log2").get<double>();
  out.decode_grouped = kernel_of(json.at("decode_attention_grouped"), {}, {"length", "heads", "group"});
  out.decode_single = kernel_of(json.at("decode_attention_single"), {}, {"length", "heads"});
  out.elementwise = kernel_of(json.at("elementwise"), {}, {"bytes"});
  for (const auto& [cards, curve] : json.at("all_reduce").items()) {
    out.all_reduce[static_cast<uint32_t>(std::stoul(cards))] = curve_of(curve);
  }
  out.eager_all_reduce_s = json.at("eager_all_reduce_s").get<double>();
  out.send_recv = curve_of(json.at("send_recv"));
  return out;
}

}  // namespace

Result<DeviceSpec> parse_device(std::string_view text, const std::string& origin) {
  try {
    return device_of(Json::parse(text));
  } catch (const std::exception& e) {
    return error(ErrorCode::kCorrupt, "{}: no device as tools/fit_devices.py writes it: {}", origin,
                 e.what());
  }
}

}  // namespace kvasir
