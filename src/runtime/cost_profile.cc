#include "runtime/cost_profile.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>

#include "base/file.h"
#include "base/fnv1a.h"
#include "ops/cpu/isa.h"
#include "runtime/costs_json.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;

std::string cpu_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("model name")) return line.substr(std::min(line.find(": ") + 2, line.size()));
  }
  return "unknown";
}

json to_json(const CostModel& c) {
  return {{"step_s", c.step_s},
          {"prefill_row_s", c.prefill_row_s},
          {"pair_s", c.pair_s},
          {"decode_row_s", c.decode_row_s},
          {"context_s", c.context_s},
          {"projected_token_s", c.projected_token_s},
          {"knee_rows", c.knee_rows},
          {"above_knee_s", c.above_knee_s},
          {"expert_share", c.expert_share},
          {"experts_s", c.experts_s},
          {"links", links_to_json(c.links)}};
}

CostModel costs_from(const json& j) {
  CostModel c;
  c.step_s = amount_from_json(j.at("step_s"));
  c.prefill_row_s = amount_from_json(j.at("prefill_row_s"));
  c.pair_s = amount_from_json(j.at("pair_s"));
  c.decode_row_s = amount_from_json(j.at("decode_row_s"));
  c.context_s = amount_from_json(j.at("context_s"));
  c.projected_token_s = amount_from_json(j.at("projected_token_s"));
  // Older files have no knee.
  if (j.contains("above_knee_s")) {
    c.knee_rows = amount_from_json(j.at("knee_rows"));
    c.above_knee_s = amount_from_json(j.at("above_knee_s"));
  }
  // Nor experts.
  if (j.contains("experts_s")) {
    c.expert_share = amount_from_json(j.at("expert_share"));
    c.experts_s = amount_from_json(j.at("experts_s"));
  }
  c.links = links_from_json(j.at("links"));
  return c;
}

}  // namespace

// If two texts have the same name, reading the file finds that out.
std::string CostFingerprint::name() const {
  Fnv1a hash;
  hash.add(text);
  return fmt::format("{:016x}", hash.value());
}

std::string cpu_cost_place(const RuntimeOptions& options) {
  return fmt::format("cpu='{}' threads={} isa={}", cpu_name(), compute_threads(options),
                     ops::isa_name(ops::detect_isa()));
}

CostFingerprint cost_fingerprint(const RuntimeOptions& options, const ModelSpec& c,
                                 const std::string& numerics_id, const std::string& place) {
  const bool disk = options.kv_offloading_disk_bytes > 0;
  const ExpertSpec& e = c.experts;
  const std::string experts =
      c.has_experts() ? fmt::format(" experts={}/{}x{}+{}", e.used, e.count, e.ffn_dim, e.shared_ffn_dim)
                      : "";
  return {
      fmt::format("{} layers={} dim={} ffn={}{} heads={} kv_heads={} head_dim={} "
                  "vocab={} numerics={} block={} layer_group={} host={} link_gbytes_per_s={} disk='{}'",
                  place, c.layers, c.dim, c.ffn_dim, experts, c.heads, c.kv_heads, c.head_dim, c.vocab_size,
                  numerics_id, options.block_size, options.kv_layer_group, options.kv_offloading_bytes > 0,
                  options.link_gbytes_per_s, disk ? options.kv_offloading_dir : "")};
}

std::string default_profile_path(const CostFingerprint& fingerprint) {
  std::string folder;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache) {
    folder = cache;
  } else if (const char* home = std::getenv("HOME"); home && *home) {
    folder = std::string(home) + "/.cache";
  } else {
    return "";
  }
  return folder + "/kvasir/profiles/" + fingerprint.name() + ".json";
}

Status save_profile(const CostProfile& profile, const std::string& path) {
  json links = json::object();
  for (const auto& [direction, fit] : profile.links) links[direction] = fit_error_to_json(fit);
  const json j = {{"kvasir_cost_profile", kFormat},
                  {"fingerprint", profile.fingerprint},
                  {"measured_at", profile.measured_at},
                  {"costs", to_json(profile.costs)},
                  {"step_fit_error", fit_error_to_json(profile.steps)},
                  {"link_fit_errors", links}};
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code failed;
  if (!folder.empty()) std::filesystem::create_directories(folder, failed);
  const std::string text = j.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  return replace_file(path, std::as_bytes(std::span(text)));
}

Result<CostProfile> load_profile(const std::string& path) {
  const auto read = read_file(path);
  if (!read.ok()) {
    return error(read.status().code(), "the cost profile {}; kvasir profile writes one",
                 read.status().message());
  }
  const std::string& text = *read;
  try {
    const json j = json::parse(text);
    if (j.at("kvasir_cost_profile").get<int>() != kFormat) throw std::out_of_range("another format");
    CostProfile profile;
    profile.fingerprint = j.at("fingerprint").get<std::string>();
    profile.measured_at = j.at("measured_at").get<int64_t>();
    profile.costs = costs_from(j.at("costs"));
    profile.steps = fit_error_from_json(j.at("step_fit_error"));
    for (const auto& [direction, fit] : j.at("link_fit_errors").items()) {
      profile.links[direction] = fit_error_from_json(fit);
    }
    return profile;
  } catch (const std::exception&) {
    return error(ErrorCode::kCorrupt,
                 "{}: not a cost profile: remove it, or let `kvasir profile` write it anew", path);
  }
}

}  // namespace kvasir
