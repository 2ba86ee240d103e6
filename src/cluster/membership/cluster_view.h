// The known members and leader, and the events that lead from one view to the next.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cluster/membership/membership.h"

namespace kvasir {

// Not thread-safe. Every change appends its events; a call that changes nothing appends none.
class ClusterView {
 public:
  // The instance of this name is no member of its own view.
  explicit ClusterView(std::string self) : self_(std::move(self)) {}

  // The complete present state: members that are not in it have left.
  void replace(std::vector<Member> members, const std::optional<Leader>& leader,
               std::vector<MembershipEvent>& events);
  // A new member, or another life of a member: the earlier life has left.
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
