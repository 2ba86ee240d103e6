// What the policy `auto` remembers from plan to plan.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "contract/view.h"
#include "sched/mechanisms/arriving_work.h"
#include "sched/mechanisms/cost_scale.h"
#include "sched/mechanisms/device_prices.h"
#include "sched/mechanisms/late_credit.h"
#include "sched/mechanisms/late_news.h"
#include "sched/mechanisms/late_turns.h"
#include "sched/mechanisms/recent_returns.h"
#include "sched/mechanisms/rest_of_output.h"
#include "sched/mechanisms/step_margins.h"
#include "sched/mechanisms/stretch.h"

namespace kvasir {

// Parts that can be switched off, each to be measured without. Users have no reason to.
struct AutoOptions {
  bool order = true;     // the queue by what can be in time; else by arrival
  bool victims = true;   // which request gives up its memory: by its price; else the latest arrival
  bool batch = true;     // the batch is bounded by gaps
  bool growth = true;    // and by the memory that it will grow to
  bool margins = true;   // margins are priced; else the greatest ratio of a thousand steps
  bool survival = true;  // lengths conditioned on survival; else the point
  bool give_up = true;   // bounds that cost others too much are given up
  bool make_way = true;  // late ones that run make way for those on time
  bool sit_out = true;   // late ones have no row that would make others late
  bool away = true;      // prompts before there is room, with layers on the slower tier
};

struct AutoState {
  CostScale scale;
  StepMargins margins;  // of costs with that scale
  ArrivingWork arriving;
  Shortages shortages;
  LateCredit credit;
  LateTurns turns;
  Stretch stretch;
  LateNews news;
  RecentReturns returns;
  double least_gap_s = 0;  // worthwhile_gap(); 0: all gaps are kept
  uint32_t plans = 0;      // since ids were last compared with those that live

  RestOfOutput rest;  // a cache

  // Now and then forgets requests that have ended.
  void forget_ended(const View& view);

  std::string save() const;
  Status restore(std::string_view text);
};

}  // namespace kvasir
