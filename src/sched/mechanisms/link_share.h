// Whether the link can serve the requests whose histories are away from the device.
//
//   sum over requests away of bytes / (W gap) <= 1/2
//
// Each of them needs its whole history over the link for each of its tokens, and that within its gap. Half of
// the link is left for moves. A request without a bound on its gaps can wait until there is room, so it needs
// nothing of the link.
//
//   symbol      here                                                unit
//   bytes / W   `seconds`: link_seconds() of its history            s
//   gap         allowed_gap() (mechanisms/token_due.h)              s
//
// Source: LayerKV (Xiong et al., 2024), Section 3.1, begins a prompt while its layers are elsewhere;
// SLOs-Serve (arXiv 2504.08784) admits what can be kept. The bound is ours.
#pragma once

namespace kvasir {

class LinkShare {
 public:
  void add(double seconds, double gap_s) { used_ += seconds / gap_s; }
  bool fits(double seconds, double gap_s) const { return used_ + seconds / gap_s <= kMost; }
  double used() const { return used_; }

 private:
  static constexpr double kMost = 0.5;
  double used_ = 0;
};

}  // namespace kvasir
