#include "model/files/pooling_type.h"

#include <fmt/format.h>

namespace kvasir {

Result<Pooling> read_pooling(const Gguf& file, std::string_view architecture,
                             std::vector<std::string>& warnings) {
  const std::string key = fmt::format("{}.pooling_type", architecture);
  if (!file.has(key)) return Pooling::kNone;
  KV_ASSIGN_OR_RETURN(const uint32_t type, file.get_u32(key));
  if (type == static_cast<uint32_t>(PoolingType::kMean)) return Pooling::kMean;
  if (type == static_cast<uint32_t>(PoolingType::kLast)) return Pooling::kLast;
  if (type != static_cast<uint32_t>(PoolingType::kNone)) {
    warnings.push_back(fmt::format("{}: {} is {}, which is not offered: there are mean (1) and last (3)",
                                   file.origin(), key, type));
  }
  return Pooling::kNone;
}

}  // namespace kvasir
