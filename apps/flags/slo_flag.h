// Latency objectives as flags write them: "ttft:500 tpot:50".
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "contract/slo.h"

namespace kvasir {

// Bounds in whole milliseconds for the keys ttft, tpot, tbt and e2el, separated by spaces or commas; "" has
// none. kInvalidArgument names the flag and the part at fault.
Result<Slo> parse_slo(std::string_view flag, std::string_view text);

}  // namespace kvasir
