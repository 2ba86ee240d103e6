// What a plan says, in words and tables.
#pragma once

#include <string>
#include <vector>

#include "apps/plan/plan.h"

namespace kvasir {

// "TTFT at most 1 s", "every gap between tokens at most 200 ms"; of classes a line each.
std::vector<std::string> bounds_in_words(const BenchConfig& config);

// Before anything is searched: what is asked.
std::string question_text(const PlanAnswer& answer, double percent);

// The table of policies, which is printed row by row.
std::string policy_header(const std::vector<std::string>& policies);
std::string policy_row(const std::vector<std::string>& policies, const FoundRate& found);

// What limits the best policy at its highest rate.
struct Binding {
  std::string word;      // "the KV memory"
  std::string evidence;  // the shares of time, and what the runs with more of it say
};
Binding binding_of(const PlanAnswer& answer);

// The answers, as sentences; each is one paragraph of a report.
std::vector<std::string> answer_paragraphs(const PlanAnswer& answer);
// Those, and the tables of changes and devices.
std::string answer_text(const PlanAnswer& answer);

std::string rate_text(double rate);               // three or four digits, without an exponent
std::string rate_text(double rate, double half);  // "2.06 +- 0.03"
std::string attained_text(double percent, double half, size_t seeds);
std::string gain_text(double gain);              // "+35 %", "no gain"
std::string found_text(const FoundRate& found);  // its rate, or between which it lies

}  // namespace kvasir
