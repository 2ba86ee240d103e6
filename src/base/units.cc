#include "base/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace kvasir {

Result<uint64_t> parse_bytes(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, double>, 9> kSuffixes = {{{"", 1.0},
                                                                                    {"B", 1.0},
                                                                                    {"KiB", 1024.0},
                                                                                    {"MiB", 1048576.0},
                                                                                    {"GiB", 1073741824.0},
                                                                                    {"TiB", 1099511627776.0},
                                                                                    {"KB", 1e3},
                                                                                    {"MB", 1e6},
                                                                                    {"GB", 1e9}}};
  double number = 0;
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (ec == std::errc() && number >= 0 && std::isfinite(number)) {
    std::string_view suffix(end, static_cast<size_t>(text.data() + text.size() - end));
    for (auto [name, factor] : kSuffixes) {
      if (suffix == name && number * factor < 9.0e18) return static_cast<uint64_t>(number * factor);
    }
  }
  return error(ErrorCode::kInvalidArgument,
               "'{}' is not a size: write bytes or a suffix, such as 512MiB or 4GiB", text);
}

std::string format_bytes(uint64_t bytes) {
  static constexpr std::array<const char*, 4> kNames = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < kKiB) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024.0;
  size_t i = 0;
  while (value >= 1024.0 && i + 1 < kNames.size()) {
    value /= 1024.0;
    ++i;
  }
  return fmt::format("{:.2f} {}", value, kNames[i]);
}

std::string count_of(uint64_t count, std::string_view one, std::string_view many) {
  if (count == 1) return fmt::format("1 {}", one);
  return many.empty() ? fmt::format("{} {}s", count, one) : fmt::format("{} {}", count, many);
}

}  // namespace kvasir
