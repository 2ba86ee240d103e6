#include "runtime/costs_json.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace kvasir {
namespace {

using nlohmann::json;

Tier tier_from(const json& j) {
  for (Tier tier : kAllTiers) {
    if (j.get_ref<const std::string&>() == name(tier)) return tier;
  }
  throw std::out_of_range("no tier " + j.dump());
}

}  // namespace

double amount_from_json(const json& j) {
  const double value = j.get<double>();
  if (!std::isfinite(value) || value < 0) throw std::out_of_range("an amount is " + j.dump());
  return value;
}

json links_to_json(const LinkCosts& links) {
  json out = json::array();
  for (Tier from : kAllTiers) {
    for (Tier to : kAllTiers) {
      const LinkCost& link = links[index_of(from)][index_of(to)];
      if (link == LinkCost{}) continue;
      out.push_back({{"from", name(from)},
                     {"to", name(to)},
                     {"latency_s", link.latency_s},
                     {"seconds_per_byte", link.seconds_per_byte}});
    }
  }
  return out;
}

LinkCosts links_from_json(const json& j) {
  LinkCosts out{};
  for (const json& link : j) {
    out[index_of(tier_from(link.at("from")))][index_of(tier_from(link.at("to")))] = {
        amount_from_json(link.at("latency_s")), amount_from_json(link.at("seconds_per_byte"))};
  }
  return out;
}

json fit_error_to_json(const FitError& e) {
  return {{"mean", e.mean}, {"p95", e.p95}, {"worst", e.worst}, {"observations", e.observations}};
}

FitError fit_error_from_json(const json& j) {
  return {amount_from_json(j.at("mean")), amount_from_json(j.at("p95")), amount_from_json(j.at("worst")),
          j.at("observations").get<size_t>()};
}

}  // namespace kvasir
