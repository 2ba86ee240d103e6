// The members and the leader as far as known, and the events that lead from one view to the next.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cluster/membership/membership.h"

namespace kvasir {

// Not thread-safe. Every change appends its events; what changes nothing appends none.
class ClusterView {
 public:
  // The instance of this name is no member of its own view.
  explicit ClusterView(std::string self) : self_(std::move(self)) {}

  // All that is there now, of all names: what is not among it has left.
  void replace(std::vector<Member> members, const std::optional<Leader>& leader,
               std::vector<MembershipEvent>& events);
  // A member, or another life of one: the earlier one has left.
  void put(Member member, std::vector<MembershipEvent>& events);
  void remove(const std::string& instance, std::vector<MembershipEvent>& events);
  void lead(const std::optional<Leader>& leader, std::vector<MembershipEvent>& events);

  // By name.
  std::vector<Member> members() const;
  const std::optional<Leader>& leader() const { return leader_; }

 private:
  std::string self_;
  std::map<std::string, Member> members_;
  std::optional<Leader> leader_;
};

}  // namespace kvasir
