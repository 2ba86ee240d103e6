#include "apps/plan/page.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/plan/words.h"
#include "apps/report/chart.h"
#include "apps/report/page.h"

namespace kvasir {
namespace {

BarChart policies_chart(const PlanAnswer& a) {
  BarChart out{"Highest rate by policy", "requests per second within the bounds", {}};
  for (const PlannedPolicy& p : a.policies) {
    const FoundRate& f = p.found;
    Bar bar{p.name, f.at(), 0, 0, f.best || f.level, found_text(f)};
    if (f.half_width > 0) {
      bar.low = std::max(0.0, f.rate - f.half_width);
      bar.high = f.rate + f.half_width;
    }
    out.bars.push_back(std::move(bar));
  }
  return out;
}

BarChart changes_chart(const PlanAnswer& a) {
  BarChart out{"What would help", "gain in the highest rate, %", {}};
  for (const WhatIf& w : a.what_ifs) {
    if (!w.failed.empty()) continue;
    // The bare change: numbers are in the table.
    const std::string name = w.what.substr(0, w.what.find(" ("));
    out.bars.push_back({name, std::max(0.0, 100 * w.gain), 0, 0, w.gain >= 0.05, gain_text(w.gain)});
  }
  return out;
}

BarChart devices_chart(const PlanAnswer& a) {
  BarChart out{"Highest rate by device", "requests per second within the bounds", {}};
  for (const PlannedDevice& d : a.devices) {
    if (!d.failed.empty()) continue;
    out.bars.push_back({d.name, d.rate, std::max(0.0, d.rate - d.half_width), d.rate + d.half_width,
                        &d == &a.devices.front(), rate_text(d.rate, d.half_width)});
  }
  return out;
}

PageTable policy_table(const PlanAnswer& a) {
  PageTable out;
  out.heads = {"policy",          "highest rate, requests/s",  "met at",   "meet all bounds", "not met at",
               "meet all bounds", "goodput there, requests/s", "P99 TTFT", "P99 TBT",         "running"};
  for (const PlannedPolicy& p : a.policies) {
    const FoundRate& f = p.found;
    if (f.best || f.level) out.strong.push_back(out.rows.size());
    if (f.end != FoundRate::End::kMet) {
      out.rows.push_back({p.name, found_text(f), "", "", "", "", "", "", "", ""});
      continue;
    }
    out.rows.push_back(
        {p.name, found_text(f), rate_text(f.low), attained_text(f.attained_low, f.half_low, a.seeds),
         rate_text(f.high), fmt::format("{:.1f} %", f.attained_high), rate_text(p.usage.goodput),
         readable(p.usage.p99_ttft_ms, AxisUnit::kMillis), readable(p.usage.p99_tbt_ms, AxisUnit::kMillis),
         fmt::format("{:.1f}", p.usage.mean_running)});
  }
  return out;
}

PageTable change_table(const PlanAnswer& a) {
  PageTable out;
  out.heads = {"change", "gain", "highest rate, requests/s", "policy"};
  for (const WhatIf& w : a.what_ifs) {
    out.rows.push_back(w.failed.empty()
                           ? std::vector<std::string>{w.what, gain_text(w.gain), rate_text(w.rate), w.policy}
                           : std::vector<std::string>{w.what, "", "", w.failed});
  }
  return out;
}

PageTable device_table(const PlanAnswer& a) {
  PageTable out;
  out.heads = {"device", "highest rate, requests/s", "policy", "devices for it"};
  if (a.load > 0) out.heads.push_back(fmt::format("devices for {} requests/s", rate_text(a.load)));
  out.heads.push_back(a.load > 0 ? "an hour, all of them" : "an hour");
  for (const PlannedDevice& d : a.devices) {
    std::vector<std::string> row = {d.name};
    if (!d.failed.empty()) {
      row.push_back(d.failed);
      row.resize(out.heads.size());
    } else {
      row.insert(row.end(), {rate_text(d.rate, d.half_width), d.policy, fmt::format("{}", d.cards)});
      const bool counted = a.load <= 0 || d.systems(a.load) > 0;
      if (a.load > 0) row.push_back(counted ? fmt::format("{}", d.cards_for(a.load)) : "?");
      const double count = static_cast<double>(a.load > 0 ? d.cards_for(a.load) : d.cards);
      row.push_back(d.price && counted ? fmt::format("{:.2f}", *d.price * count) : "");
    }
    out.rows.push_back(std::move(row));
  }
  return out;
}

}  // namespace

std::vector<std::pair<std::string, DrawnChart>> plan_charts(const PlanAnswer& a) {
  std::vector<std::pair<std::string, DrawnChart>> out;
  for (const BarChart& chart : {policies_chart(a), changes_chart(a), devices_chart(a)}) {
    if (!chart.bars.empty()) out.emplace_back(file_name_of(chart.title), drawn(chart));
  }
  return out;
}

std::string plan_page(const PlanAnswer& a) {
  Page page(fmt::format("{} on {}, {}", a.model, a.device, a.workload));
  std::string asked = fmt::format("{:g} % of the requests must meet: ", a.percent);
  for (size_t i = 0; i < a.bounds.size(); ++i) asked += (i > 0 ? "; " : "") + a.bounds[i];
  page.paragraph(asked + ".", /*dim=*/true);
  for (const std::string& paragraph : answer_paragraphs(a)) page.paragraph(paragraph);
  std::vector<DrawnChart> charts;
  for (auto& [name, chart] : plan_charts(a)) charts.push_back(std::move(chart));
  page.charts(charts);
  page.heading("Policies");
  page.table(policy_table(a));
  page.paragraph(
      "Rates are where the share of requests that meet all bounds falls below what is asked, the mean over "
      "the seeds with half the 95 % interval of Student's t. In colour: the best, and what is level with it.",
      /*dim=*/true);
  std::string left_out;
  for (const LeftOutPolicy& p : a.left_out) {
    left_out += (left_out.empty() ? "Left out: " : "; ") + p.policy + " " + p.why;
  }
  if (!left_out.empty()) page.paragraph(left_out + ".", /*dim=*/true);
  for (const LeftOutPolicy& p : a.lacking) page.paragraph(runs_without(p) + ".", /*dim=*/true);
  if (!a.what_ifs.empty()) {
    page.heading("What would help");
    page.table(change_table(a));
    page.paragraph("Each change by itself, by shorter runs than those of the policies.", /*dim=*/true);
  }
  if (!a.devices.empty()) {
    page.heading("Devices");
    page.table(device_table(a));
  }
  page.heading("Settings");
  page.settings(a.settings);
  return page.text();
}

}  // namespace kvasir
