#include "model/files/gguf_writer.h"

#include "base/check.h"
#include "base/file.h"
#include "base/units.h"
#include "model/files/gguf_bytes.h"

namespace kvasir {
namespace {

constexpr uint64_t kAlignment = 32;
constexpr std::string_view kAlignmentKey = "general.alignment";

using Bytes = std::vector<std::byte>;

Bytes header_of(const Gguf& metadata, std::span<const GgufTensorInfo> tensors) {
  Bytes out;
  for (const char c : {'G', 'G', 'U', 'F'}) append_value(out, c);
  append_value<uint32_t>(out, 3);
  append_value<uint64_t>(out, tensors.size());
  append_value<uint64_t>(out, metadata.keys().size() - (metadata.has(kAlignmentKey) ? 1 : 0));
  for (const std::string_view key : metadata.keys()) {
    if (key == kAlignmentKey) continue;
    const GgufValue& value = *metadata.find(key);
    append_text(out, key);
    append_value(out, static_cast<uint32_t>(value.type));
    if (value.type == GgufType::kArray) {
      append_value(out, static_cast<uint32_t>(value.element));
      append_value(out, value.count);
    }
    append_bytes(out, value.payload);
  }
  uint64_t offset = 0;
  for (const GgufTensorInfo& t : tensors) {
    append_text(out, t.name);
    append_value(out, t.dimensions);
    for (uint32_t d = 0; d < t.dimensions; ++d) append_value(out, t.shape[d]);
    append_value(out, t.type->id);
    append_value(out, offset);
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
