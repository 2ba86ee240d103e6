#include "model/files/gguf_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "model/files/gguf_assembler.h"

namespace kvasir {
namespace {

constexpr std::string_view kNumber = "split.no", kCount = "split.count", kTensors = "split.tensors.count";

std::string ending(uint32_t number, uint32_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", number + 1, count);
}

// That `part` is the one with this number.
Status check_part(const Gguf& part, uint32_t number, uint32_t count) {
  KV_ASSIGN_OR_RETURN(const uint32_t its_number, part.get_u32(kNumber));
  KV_ASSIGN_OR_RETURN(const uint32_t its_count, part.get_u32(kCount));
  if (its_number == number && its_count == count) return {};
  return error(ErrorCode::kCorrupt,
               "{}: it says that it is part {} of {}, where part {} of {} is needed; fetch it again",
               part.origin(), uint64_t{its_number} + 1, its_count, number + 1, count);
}

}  // namespace

Result<uint32_t> split_count(const Gguf& file) {
  if (!file.has(kCount)) return uint32_t{1};
  KV_ASSIGN_OR_RETURN(const uint32_t count, file.get_u32(kCount));
  constexpr uint32_t kMost = 65535;  // the key has 16 bits
  if (count == 0 || count > kMost) {
    return error(ErrorCode::kCorrupt, "{}: it claims to be one of {} parts; fetch it again", file.origin(),
                 count);
  }
  return count;
}

Result<std::string> split_stem(const std::string& path, uint32_t count) {
  const size_t length = ending(0, count).size();
  std::string stem = path.substr(0, path.size() - std::min(length, path.size()));
  uint32_t number = 0;  // from 1 on; after the hyphen
  const char* digits = path.data() + std::min(stem.size() + 1, path.size());
  const bool is_one = std::from_chars(digits, path.data() + path.size(), number).ec == std::errc() &&
                      number >= 1 && number <= count && split_path(stem, number - 1, count) == path;
  if (is_one) return stem;
  return error(
      ErrorCode::kInvalidArgument,
      "{}: this is one of {} parts, and its name does not end like {}; give the parts their names back", path,
      count, ending(0, count));
}

std::string split_path(const std::string& stem, uint32_t number, uint32_t count) {
  return stem + ending(number, count);
}

Result<Gguf> join_split(const std::vector<Gguf>& parts) {
  const Gguf& first = parts.front();
  const auto count = static_cast<uint32_t>(parts.size());
  GgufAssembler out(first.origin());
  out.set_version(first.version());
  for (std::string_view key : first.keys()) {
    if (!key.starts_with("split.")) out.set(key, *first.find(key));
  }
  size_t tensors = 0;
  for (uint32_t number = 0; number < count; ++number) {
    const Gguf& part = parts[number];
    KV_RETURN_IF_ERROR(check_part(part, number, count));
    for (const std::span<const std::byte> header : part.headers()) out.add_header(header);
    for (const GgufTensor& tensor : part.tensors()) {
      if (out.add_tensor(tensor.name, tensor)) continue;
      return error(ErrorCode::kCorrupt, "{}: the tensor {} is in an earlier part, too; fetch the parts again",
                   part.origin(), gguf_quoted(tensor.name));
    }
    tensors += part.tensors().size();
  }
  KV_ASSIGN_OR_RETURN(const uint32_t claimed, first.get_u32(kTensors));
  if (claimed != tensors) {
    return error(ErrorCode::kCorrupt,
                 "{}: it claims {} tensors in all parts, which have {}; fetch them again", first.origin(),
                 claimed, tensors);
  }
  return out.finish();
}

}  // namespace kvasir
