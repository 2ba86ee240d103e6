// Orca: iteration-level scheduling, with KV reserved at admission for the greatest length of a request.
#pragma once

#include <memory>

#include "contract/policy.h"

namespace kvasir {
std::unique_ptr<Policy> make_orca_policy();
}
