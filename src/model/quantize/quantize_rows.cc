#include "model/quantize/quantize_rows.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "model/quantize/quantize_row.h"

namespace kvasir {
namespace {

// Below this a thread costs more than it saves.
constexpr int64_t kValuesOfAThread = 1 << 16;

}  // namespace

Status quantize_rows(const StoredRows& from, const std::vector<int64_t>& order, int64_t first, int64_t count,
                     ops::WeightType type, int threads, std::byte* out) {
  const size_t from_bytes = ops::row_bytes(from.type, from.columns),
               to_bytes = ops::row_bytes(type, from.columns);
  const auto part = [&](int64_t begin, int64_t end) -> Status {
    std::vector<float> values(static_cast<size_t>(from.columns));
    std::vector<std::byte> made(from.made != nullptr ? from_bytes : 0);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = order.empty() ? first + i : order[static_cast<size_t>(first + i)];
      if (from.made != nullptr) from.made->read(from.first_made + row, made.data());
      const std::byte* source =
          from.made != nullptr ? made.data() : from.data + static_cast<size_t>(row) * from_bytes;
      std::byte* to = out + static_cast<size_t>(i) * to_bytes;
      if (from.type == type) {
        std::memcpy(to, source, to_bytes);
        continue;
      }
      ops::dequantize_row(from.type, source, from.columns, values.data());
      const Status status = quantize_row(type, values, to);
      if (!status.ok()) return error(status.code(), "row {}: {}", first + i, status.message());
    }
    return {};
  };
  const auto parts = std::clamp<int64_t>(count * from.columns / kValuesOfAThread, 1, threads);
  std::vector<Status> results(static_cast<size_t>(parts));
  const auto run = [&](int64_t p) {
    results[static_cast<size_t>(p)] = part(count * p / parts, count * (p + 1) / parts);
  };
  {
    std::vector<std::jthread> team;
    for (int64_t p = 1; p < parts; ++p) team.emplace_back(run, p);
    run(0);
  }
  for (const Status& status : results) KV_RETURN_IF_ERROR(status);
  return {};
}

}  // namespace kvasir
