// Whether an output is held to all that a JSON schema asks for. The library follows one keyword of a schema
// that alone describes its values ($ref, const, enum, anyOf, oneOf, allOf, or else the type with its own
// keywords), and ignores the others. This finds what would be ignored.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>

#include "base/status.h"

namespace kvasir {

class SchemaHold {
 public:
  // REQUIRES: the root outlives this.
  explicit SchemaHold(const nlohmann::json& root) : root_(root) {}

  // Of one schema, without those within it. `implied_type`: what its place makes of it ("string" of the names
  // of properties); empty: nothing. kInvalidArgument: names the keyword to which an output would not be held.
  Status check(const nlohmann::json& schema, std::string_view implied_type) const;

 private:
  // A set of the types that values have, a bit each.
  using Types = uint32_t;

  Status check_beside(const nlohmann::json& schema, std::string_view followed) const;
  Status check_object(const nlohmann::json& schema) const;
  Status check_disjoint(const nlohmann::json& alternatives) const;
  bool disjoint(const nlohmann::json& a, const nlohmann::json& b) const;
  // What a schema's values are at most; of a schema that is too involved, all.
  Types types_of(const nlohmann::json& schema, int depth = 0) const;
  // The schema that references lead to.
  const nlohmann::json& resolved(const nlohmann::json& schema) const;
  // Both have a `const` or `enum`, and no value is in both. False where that would take too long to find out.
  bool share_no_value(const nlohmann::json& a, const nlohmann::json& b) const;
  // Whether so much more may be looked at: what all checks of a root take is bounded.
  bool may_look_at(size_t more) const;
  // The values of `const` or `enum`; empty where there are neither.
  static std::span<const nlohmann::json> finite(const nlohmann::json& schema);

  const nlohmann::json& root_;
  mutable size_t looked_at_ = 0;
};

}  // namespace kvasir
