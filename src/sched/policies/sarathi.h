// Sarathi-Serve: chunked prefills beside all decodes, within a token budget.
#pragma once

#include <memory>

#include "contract/policy.h"

namespace kvasir {
std::unique_ptr<Policy> make_sarathi_policy();
}
