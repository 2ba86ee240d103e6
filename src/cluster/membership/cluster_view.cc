#include "cluster/membership/cluster_view.h"

#include <set>
#include <utility>

namespace kvasir {

void ClusterView::replace(std::vector<Member> members, const std::optional<Leader>& new_leader,
                          std::vector<MembershipEvent>& events) {
  std::set<std::string> there;
  for (const Member& m : members) there.insert(m.id.instance);
  std::vector<std::string> gone;
  for (const auto& [instance, member] : members_) {
    if (!there.contains(instance)) gone.push_back(instance);
  }
  for (const std::string& instance : gone) remove(instance, events);
  for (Member& m : members) put(std::move(m), events);
  lead(new_leader, events);
}

void ClusterView::put(Member member, std::vector<MembershipEvent>& events) {
  if (member.id.instance == self_) return;
  const auto it = members_.find(member.id.instance);
  if (it != members_.end()) {
    if (it->second.id == member.id) return;
    remove(member.id.instance, events);
  }
  events.push_back(MemberJoined{member});
  std::string name = member.id.instance;
  members_.emplace(std::move(name), std::move(member));
}

void ClusterView::remove(const std::string& instance, std::vector<MembershipEvent>& events) {
  const auto it = members_.find(instance);
  if (it == members_.end()) return;
  events.push_back(MemberLeft{it->second.id});
  members_.erase(it);
}

void ClusterView::lead(const std::optional<Leader>& new_leader, std::vector<MembershipEvent>& events) {
  if (leader_ == new_leader) return;
  leader_ = new_leader;
  if (leader_) {
    events.push_back(LeaderElected{*leader_});
  } else {
    events.push_back(LeaderGone{});
  }
}

std::vector<Member> ClusterView::members() const {
  std::vector<Member> out;
  for (const auto& [instance, member] : members_) out.push_back(member);
  return out;
}

}  // namespace kvasir
