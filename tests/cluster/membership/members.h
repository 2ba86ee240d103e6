// Members for tests, and events as text.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "cluster/membership/membership.h"

namespace kvasir::test {

// Compatible with each other.
inline Member some_member(const std::string& name) {
  Member m;
  m.id.instance = name;
  m.transport = "grpc";
  m.transport_version = "1.13.1";
  m.transport_address = "127.0.0.1:" + std::to_string(1000 + name.size());
  m.wire_version = 1;
  m.kvasir_version = "0.1.0";
  m.numerics_id = "kvasir-2/fma/q4_1/act-int8/kv-bf16/tp1";
  m.geometry = "f00d";
  m.lends_cells = 300;
  m.http_address = "http://127.0.0.1:8000";
  return m;
}

inline std::string describe(const MembershipEvent& event) {
  const auto id = [](const PeerId& p) { return fmt::format("{}/{}", p.instance, p.epoch); };
  if (const auto* e = std::get_if<MemberJoined>(&event)) return "+" + id(e->member.id);
  if (const auto* e = std::get_if<MemberLeft>(&event)) return "-" + id(e->id);
  if (const auto* e = std::get_if<LeaderElected>(&event)) {
    return fmt::format("leader={}@{}", id(e->leader.id), e->leader.term);
  }
  if (std::holds_alternative<LeaderGone>(event)) return "leader=none";
  if (std::holds_alternative<DirectoryDown>(event)) return "down";
  if (std::holds_alternative<DirectoryUp>(event)) return "up";
  if (const auto* e = std::get_if<EpochLost>(&event)) return "lost=" + id(e->id);
  return "rejoined=" + id(std::get<Rejoined>(event).id);
}

// Joined by spaces.
inline std::string describe(const std::vector<MembershipEvent>& events) {
  std::string out;
  for (const MembershipEvent& event : events) out += (out.empty() ? "" : " ") + describe(event);
  return out;
}

}  // namespace kvasir::test
