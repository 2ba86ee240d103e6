// Which late request has the next turn, where weights differ.
//
// The credit for late requests (mechanisms/late_credit.h) pays one after the other. Those of one weight have
// their turns in order of arrival; among weights the next turn goes to the weight w that has had the least
// for what it is worth,
//
//   least  (sum of the costs that the credit has paid for it) / w,
//
// so each gets a share w / W of the credit, W the sum of the weights that wait, whatever the others send: a
// request of weight w waits at most W / w times as long as if all had its weight, and one turn of each other
// weight. A weight for which nothing waited gets nothing for the time before.
//
// Source: weighted fair queueing, Demers, Keshav, Shenker, "Analysis and simulation of a fair queueing
// algorithm", SIGCOMM 1989; by the start of turns, as in Goyal, Vin, Cheng, SIGCOMM 1996.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvasir {

class LateTurns {
 public:
  // Once for each plan: the weights of which requests wait, each once.
  void observe(std::span<const float> weights);
  // What it has had for its worth, in seconds; only differences mean anything. REQUIRES: observed
  double had_s(float weight) const;
  // A request of this weight had its turn.
  void spend(float weight, double cost_s);

  std::string save() const;
  Status restore(std::string_view text);

 private:
  struct Share {
    float weight = 1;
    double had_s = 0;
    bool waits = false;
  };
  std::vector<Share> shares_;  // in the order in which they came
};

}  // namespace kvasir
