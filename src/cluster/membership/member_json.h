// A member in the form that the directory stores.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "cluster/membership/membership.h"

namespace kvasir {

// Longer texts are refused.
constexpr size_t kMaxMemberJsonBytes = 16 << 10;

// One JSON object, without the name and the epoch, which are its key and its lease.
std::string member_to_json(const Member& member);

// kCorrupt: it is not such an object, or longer than kMaxMemberJsonBytes. Fields that this version does not
// know are skipped.
Result<Member> member_from_json(std::string_view text, PeerId id);

}  // namespace kvasir
