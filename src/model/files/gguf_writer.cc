#include "model/files/gguf_writer.h"

#include "base/check.h"
#include "base/file.h"
#include "base/units.h"

namespace kvasir {
namespace {

constexpr uint64_t kAlignment = 32;
constexpr std::string_view kAlignmentKey = "general.alignment";

using Bytes = std::vector<std::byte>;

template <typename T>
void put(Bytes& out, T value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof(T));
}
void put_string(Bytes& out, std::string_view text) {
  put<uint64_t>(out, text.size());
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  out.insert(out.end(), bytes, bytes + text.size());
}

Bytes header_of(const Gguf& metadata, std::span<const GgufTensorInfo> tensors) {
  Bytes out;
  for (const char c : {'G', 'G', 'U', 'F'}) put(out, c);
  put<uint32_t>(out, 3);
  put<uint64_t>(out, tensors.size());
  put<uint64_t>(out, metadata.keys().size() - (metadata.has(kAlignmentKey) ? 1 : 0));
  for (const std::string_view key : metadata.keys()) {
    if (key == kAlignmentKey) continue;
    const GgufValue& value = *metadata.find(key);
    put_string(out, key);
    put(out, static_cast<uint32_t>(value.type));
    if (value.type == GgufType::kArray) {
      put(out, static_cast<uint32_t>(value.element));
      put(out, value.count);
    }
    out.insert(out.end(), value.payload.begin(), value.payload.end());
  }
  uint64_t offset = 0;
  for (const GgufTensorInfo& t : tensors) {
    put_string(out, t.name);
    put(out, t.dimensions);
    for (uint32_t d = 0; d < t.dimensions; ++d) put(out, t.shape[d]);
    put(out, t.type->id);
    put(out, offset);
    offset = round_up(offset + t.bytes(), kAlignment);
  }
  out.resize(round_up<size_t>(out.size(), kAlignment));
  return out;
}

}  // namespace

uint64_t GgufTensorInfo::bytes() const {
  return shape[0] / type->block_values * type->block_bytes * shape[1] * shape[2] * shape[3];
}

Status write_gguf(const std::string& path, const Gguf& metadata, std::span<const GgufTensorInfo> tensors,
                  const std::function<Status(size_t index, const GgufSink& sink)>& write_tensor) {
  KV_ASSIGN_OR_RETURN(FileReplacement file, FileReplacement::create(path));
  KV_RETURN_IF_ERROR(file.append(header_of(metadata, tensors)));
  for (size_t i = 0; i < tensors.size(); ++i) {
    uint64_t written = 0;
    KV_RETURN_IF_ERROR(write_tensor(i, [&](std::span<const std::byte> bytes) {
      written += bytes.size();
      return file.append(bytes);
    }));
    KV_CHECK(written == tensors[i].bytes(), "tensor={} bytes={} of {}", tensors[i].name, written,
             tensors[i].bytes());
    KV_RETURN_IF_ERROR(file.append(Bytes(round_up(written, kAlignment) - written)));
  }
  return file.commit();
}

}  // namespace kvasir
