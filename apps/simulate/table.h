// What a simulation prints.
#pragma once

#include <string>
#include <vector>

#include "apps/simulate/study.h"

namespace kvasir {

// One line for each policy and rate: the rate as a multiple of the capacity, throughput, goodput, attainment,
// tails and preemptions. With several seeds the means and half their 95 % intervals.
std::string study_table(const std::vector<PolicyRuns>& all, const BenchConfig& config, double capacity);

// Of each rate: under which policy most requests meet all of their bounds, and which are level with it, which
// is to say that seed by seed they differ by no more than two points or than the differences' own 95 %
// interval. Nothing for one policy, or without bounds.
std::string best_lines(const std::vector<PolicyRuns>& all, const BenchConfig& config);

// Says which rates the runs were too short for, or which no system sustains; nothing if there are none. A
// run of `requests` is long if its arrivals take ten times what a request is in the full system, where
// `at_once` are.
std::string short_runs(const std::vector<EffectiveThroughput>& found, int64_t requests, double at_once,
                       double capacity);

std::string effective_table(const std::vector<EffectiveThroughput>& found, double percent, double capacity);

// The last line of a request's life: how it ended, and its latencies.
std::string end_of_life(const RequestRecord& record, Nanos start);

// One line for each reason that plans of a run gave: how often, its name, and what it means; nothing if there
// are none.
std::string decisions_table(const SimulationOutcome& outcome);

}  // namespace kvasir
