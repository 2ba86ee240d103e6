#include "apps/plan/plan_json.h"

#include <nlohmann/json.hpp>

#include "apps/plan/words.h"

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;

const char* name_of(FoundRate::End end) {
  switch (end) {
    case FoundRate::End::kMet:
      return "found";
    case FoundRate::End::kBehind:
      return "behind";
    case FoundRate::End::kNone:
      return "none";
    case FoundRate::End::kAlways:
      return "unbounded";
  }
  return "";
}

Json policy_of(const PlannedPolicy& p) {
  const FoundRate& f = p.found;
  Json out = {{"policy", p.name}, {"result", name_of(f.end)}, {"best", f.best}, {"level", f.level}};
  if (f.end == FoundRate::End::kMet) {
    out["rate"] = f.rate;
    out["half_width"] = f.half_width;
    out["by_seed"] = f.by_seed;
    out["attained_met"] = f.attained_low;
    out["attained_missed"] = f.attained_high;
    out["goodput"] = p.usage.goodput;
    out["p99_ttft_ms"] = p.usage.p99_ttft_ms;
    out["p99_tbt_ms"] = p.usage.p99_tbt_ms;
  }
  out["met_at"] = f.low;
  out["missed_at"] = f.high;
  return out;
}

}  // namespace

std::string plan_json(const PlanAnswer& a) {
  Json out = {{"model", a.model},
              {"device", a.device},
              {"workload", a.workload},
              {"bounds", a.bounds},
              {"percent", a.percent},
              {"capacity", a.capacity},
              {"residence_s", a.residence_s},
              {"seeds", a.seeds},
              {"run_requests", a.run_requests},
              {"judged_s", a.run_seconds}};
  out["policies"] = Json::array();
  for (const PlannedPolicy& p : a.policies) out["policies"].push_back(policy_of(p));
  out["left_out"] = Json::array();
  for (const LeftOutPolicy& p : a.left_out) out["left_out"].push_back({{"policy", p.policy}, {"why", p.why}});
  out["lacking"] = Json::array();
  if (!a.failed.empty()) out["failed"] = a.failed;
  for (const LeftOutPolicy& p : a.lacking) out["lacking"].push_back({{"policy", p.policy}, {"why", p.why}});
  out["binds"] = binding_of(a).word;
  out["what_if"] = Json::array();
  for (const WhatIf& w : a.what_ifs) {
    Json one = {{"what", w.what}};
    if (w.failed.empty()) {
      one["gain"] = w.gain;
      one["rate"] = w.rate;
      one["policy"] = w.policy;
    } else {
      one["failed"] = w.failed;
    }
    out["what_if"].push_back(std::move(one));
  }
  out["devices"] = Json::array();
  for (const PlannedDevice& d : a.devices) {
    Json one = {{"device", d.name}};
    if (!d.failed.empty()) {
      one["failed"] = d.failed;
    } else {
      one["policy"] = d.policy;
      one["rate"] = d.rate;
      one["cards_of_a_system"] = d.cards;
      if (d.price) one["price_per_hour"] = *d.price;
      // Nothing where the interval of the rate reaches zero.
      if (a.load > 0 && d.systems(a.load) > 0) one["cards"] = d.cards_for(a.load);
    }
    out["devices"].push_back(std::move(one));
  }
  if (a.load > 0) out["load"] = a.load;
  out["answer"] = answer_paragraphs(a);
  // A name may be a path, with any bytes.
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kvasir
