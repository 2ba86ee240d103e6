// GGUF: the one place that reads an unchecked file.
//
// The layout: magic, version, tensor count, key count, keys with values, tensor infos, padding to the
// alignment, tensor data. Counts are bounded by what the rest of the file could hold before anything is
// reserved for them, so a damaged count costs an error, not memory.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/units.h"
#include "model/files/gguf.h"

namespace kvasir {
namespace {

constexpr uint64_t kMaxAlignment = kMiB;
constexpr uint32_t kMaxDimensions = 4;
// The smallest key: an empty name (8 bytes), its type (4), a one-byte value.
constexpr uint64_t kMinKeyBytes = 8 + 4 + 1;
// The smallest tensor info: an empty name (8), dimension count (4), one dimension (8), type (4), offset (8).
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;
static_assert(std::endian::native == std::endian::little, "GGUF is read in place");

// What a file that is not GGUF seems to be: a noun for the message, or an empty string.
std::string_view guess_kind(std::string_view start, uint64_t file_bytes) {
  if (start.starts_with("PK\x03\x04")) return "a zip file (perhaps a PyTorch checkpoint)";
  if (start.starts_with("\x1f\x8b")) return "a gzip file";
  if (start.starts_with("version https://git-lfs")) return "a Git LFS pointer, not the model itself";
  if (start.starts_with("<!") || start.starts_with("<html")) return "a web page";
  if (start.starts_with("tjgg") || start.starts_with("lmgg") || start.starts_with("fmgg")) {
    return "a model in a format older than GGUF";
  }
  if (start.size() > 8 && start[8] == '{') {
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, start.data(), sizeof(header_bytes));
    if (header_bytes >= 2 && header_bytes < file_bytes) return "a safetensors file";
  }
  return "";
}

// Product without overflow, or false.
bool multiply(uint64_t a, uint64_t b, uint64_t& out) {
  return !__builtin_mul_overflow(a, b, &out);
}

}  // namespace

// Reads forward; the first failure is returned and the object is then thrown away.
class GgufParser {
 public:
  GgufParser(std::span<const std::byte> bytes, std::string origin) : bytes_(bytes) {
    file_.origin_ = std::move(origin);
  }

  Result<Gguf> run() {
    KV_RETURN_IF_ERROR(read_preamble());
    KV_RETURN_IF_ERROR(read_metadata());
    KV_RETURN_IF_ERROR(read_alignment());
    KV_RETURN_IF_ERROR(read_tensor_infos());
    KV_RETURN_IF_ERROR(place_tensors());
    KV_RETURN_IF_ERROR(check_overlap());
    return std::move(file_);
  }

 private:
  template <typename... Args>
  Status corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    return error(ErrorCode::kCorrupt, "{}: {}; the file is damaged or incomplete; fetch it again",
                 file_.origin_, fmt::format(format, std::forward<Args>(args)...));
  }
  Status cut_short(std::string_view what) const {
    return corrupt("it ends inside {} (at byte {} of {})", what, position_, bytes_.size());
  }

  uint64_t left() const { return bytes_.size() - position_; }

  template <typename T>
  bool read(T& value) {
    if (left() < sizeof(T)) return false;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return true;
  }
  bool read_string(std::string_view& value) {
    uint64_t length = 0;
    if (!read(length) || length > left()) return false;
    value = {reinterpret_cast<const char*>(bytes_.data()) + position_, length};
    position_ += length;
    return true;
  }

  Status read_preamble();
  Status read_metadata();
  Status read_value(std::string_view key, GgufValue& value);
  Status read_payload(std::string_view key, GgufType type, uint64_t count);
  Status read_alignment();
  Status read_tensor_infos();
  Status read_tensor_info();
  Status place_tensors();
  Status check_overlap() const;

  std::span<const std::byte> bytes_;
  uint64_t position_ = 0;  // never past bytes_.size()
  uint64_t tensor_count_ = 0;
  uint64_t key_count_ = 0;
  std::vector<uint64_t> offsets_;  // of each tensor, from the start of the tensor data
  Gguf file_;
};

Status GgufParser::read_preamble() {
  const std::string_view start(reinterpret_cast<const char*>(bytes_.data()),
                               std::min<size_t>(bytes_.size(), 64));
  constexpr std::string_view kMagic = "GGUF";
  if (start.empty()) {
    return error(ErrorCode::kInvalidArgument, "{}: the file is empty; fetch it again", file_.origin_);
  }
  if (start.size() < kMagic.size() && kMagic.starts_with(start)) return cut_short("the first four bytes");
  if (!start.starts_with(kMagic)) {
    const std::string_view kind = guess_kind(start, bytes_.size());
    return error(ErrorCode::kInvalidArgument,
                 "{}: this is not a GGUF file{}{}; convert the model to GGUF or name another file",
                 file_.origin_, kind.empty() ? "" : " but ", kind);
  }
  position_ = kMagic.size();
  if (!read(file_.version_)) return cut_short("the version");
  if (file_.version_ == 1) {
    return error(ErrorCode::kUnsupported,
                 "{}: GGUF version 1 is not read; convert the model again with a current converter",
                 file_.origin_);
  }
  if (file_.version_ == __builtin_bswap32(2) || file_.version_ == __builtin_bswap32(3)) {
    return error(ErrorCode::kUnsupported,
                 "{}: this is a big-endian GGUF file; convert the model again for little-endian machines",
                 file_.origin_);
  }
  if (file_.version_ != 2 && file_.version_ != 3) {
    return error(
        ErrorCode::kUnsupported,
        "{}: GGUF version {} is not read, only 2 and 3; convert the model again or update this program",
        file_.origin_, file_.version_);
  }
  if (!read(tensor_count_)) return cut_short("the tensor count");
  if (!read(key_count_)) return cut_short("the key count");
  if (key_count_ > left() / kMinKeyBytes) {
    return corrupt("it claims {} metadata keys in {} bytes", key_count_, left());
  }
  if (tensor_count_ > left() / kMinTensorBytes) {
    return corrupt("it claims {} tensors in {} bytes", tensor_count_, left());
  }
  return {};
}

Status GgufParser::read_metadata() {
  file_.keys_.reserve(key_count_);
  file_.metadata_.reserve(key_count_);
  for (uint64_t i = 0; i < key_count_; ++i) {
    std::string_view key;
    if (!read_string(key)) return cut_short(fmt::format("the name of metadata key {}", i));
    GgufValue value;
    KV_RETURN_IF_ERROR(read_value(key, value));
    if (!file_.metadata_.emplace(key, value).second) {
      return corrupt("metadata key {} is there twice", gguf_quoted(key));
    }
    file_.keys_.push_back(key);
  }
  return {};
}

Status GgufParser::read_value(std::string_view key, GgufValue& value) {
  uint32_t type = 0;
  if (!read(type)) return cut_short(fmt::format("the type of metadata {}", gguf_quoted(key)));
  if (type > static_cast<uint32_t>(GgufType::kF64)) {
    return corrupt("metadata {} has the unknown type {}", gguf_quoted(key), type);
  }
  value.type = static_cast<GgufType>(type);
  value.element = value.type;
  if (value.type == GgufType::kArray) {
    uint32_t element = 0;
    if (!read(element) || !read(value.count)) {
      return cut_short(fmt::format("the array of metadata {}", gguf_quoted(key)));
    }
    if (element == static_cast<uint32_t>(GgufType::kArray)) {
      return error(
          ErrorCode::kUnsupported,
          "{}: metadata {} is an array of arrays, which is not read; convert the model again without it",
          file_.origin_, gguf_quoted(key));
    }
    if (element > static_cast<uint32_t>(GgufType::kF64)) {
      return corrupt("metadata {} is an array of the unknown type {}", gguf_quoted(key), element);
    }
    value.element = static_cast<GgufType>(element);
  }
  const uint64_t begin = position_;
  KV_RETURN_IF_ERROR(read_payload(key, value.element, value.count));
  value.payload = bytes_.subspan(begin, position_ - begin);
  return {};
}

// Steps over `count` values of `type`, checking that each lies in the file.
Status GgufParser::read_payload(std::string_view key, GgufType type, uint64_t count) {
  if (type == GgufType::kString) {
    if (count > left() / sizeof(uint64_t)) {
      return corrupt("metadata {} claims {} strings in {} bytes", gguf_quoted(key), count, left());
    }
    for (uint64_t i = 0; i < count; ++i) {
      std::string_view text;
      if (!read_string(text)) return cut_short(fmt::format("string {} of metadata {}", i, gguf_quoted(key)));
    }
    return {};
  }
  const uint64_t bytes = gguf_type_bytes(type);
  if (count > left() / bytes) return cut_short(fmt::format("the value of metadata {}", gguf_quoted(key)));
  if (type == GgufType::kBool) {
    for (uint64_t i = 0; i < count; ++i) {
      if (std::to_integer<uint8_t>(bytes_[position_ + i]) > 1) {
        return corrupt("metadata {} holds a bool that is neither 0 nor 1", gguf_quoted(key));
      }
    }
  }
  position_ += count * bytes;
  return {};
}

Status GgufParser::read_alignment() {
  constexpr std::string_view kKey = "general.alignment";
  if (!file_.has(kKey)) return {};
  auto alignment = file_.get_u32(kKey);
  if (!alignment.ok()) return alignment.status();
  // The format says a multiple of 8; a power of two is what every writer uses and what mapping needs.
  if (*alignment < 8 || *alignment > kMaxAlignment || !std::has_single_bit(*alignment)) {
    return corrupt("the alignment {} is not a power of two from 8 to {}", *alignment, kMaxAlignment);
  }
  file_.alignment_ = *alignment;
  return {};
}

Status GgufParser::read_tensor_infos() {
  if (tensor_count_ > left() / kMinTensorBytes) {
    return corrupt("it claims {} tensors in {} bytes", tensor_count_, left());
  }
  file_.tensors_.reserve(tensor_count_);
  file_.tensor_index_.reserve(tensor_count_);
  offsets_.reserve(tensor_count_);
  for (uint64_t i = 0; i < tensor_count_; ++i) {
    KV_RETURN_IF_ERROR(read_tensor_info());
  }
  file_.headers_ = {bytes_.first(position_)};
  return {};
}

Status GgufParser::read_tensor_info() {
  GgufTensor tensor;
  const size_t index = file_.tensors_.size();
  if (!read_string(tensor.name)) return cut_short(fmt::format("the name of tensor {}", index));
  const std::string name = gguf_quoted(tensor.name);
  if (!read(tensor.dimensions)) return cut_short(fmt::format("the shape of tensor {}", name));
  if (tensor.dimensions < 1 || tensor.dimensions > kMaxDimensions) {
    return corrupt("tensor {} has {} dimensions, not 1 to {}", name, tensor.dimensions, kMaxDimensions);
  }
  uint64_t values = 1;
  for (uint32_t d = 0; d < tensor.dimensions; ++d) {
    if (!read(tensor.shape[d])) return cut_short(fmt::format("the shape of tensor {}", name));
    if (tensor.shape[d] == 0 || !multiply(values, tensor.shape[d], values)) {
      return corrupt("dimension {} of tensor {} is {}", d, name, tensor.shape[d]);
    }
  }
  uint32_t type = 0;
  uint64_t offset = 0;
  if (!read(type) || !read(offset)) return cut_short(fmt::format("the place of tensor {}", name));
  tensor.type = gguf_tensor_type(type);
  if (tensor.type == nullptr) {
    return error(
        ErrorCode::kUnsupported,
        "{}: tensor {} is of type number {}, which this program does not know; quantise the model as "
        "Q4_K_M or Q8_0",
        file_.origin_, name, type);
  }
  if (!file_.tensor_index_.emplace(tensor.name, index).second)
    return corrupt("tensor {} is there twice", name);
  file_.tensors_.push_back(tensor);
  offsets_.push_back(offset);
  return {};
}

Status GgufParser::place_tensors() {
  const uint64_t begin = round_up(position_, file_.alignment_);
  if (file_.tensors_.empty()) return {};
  if (begin > bytes_.size()) return cut_short("the padding before the tensor data");
  const std::span<const std::byte> tensor_data = bytes_.subspan(begin);
  for (size_t i = 0; i < file_.tensors_.size(); ++i) {
    GgufTensor& tensor = file_.tensors_[i];
    if (tensor.shape[0] % tensor.type->block_values != 0) {
      return corrupt("the rows of tensor {} have {} values, which is not a multiple of the {} of a {} block",
                     gguf_quoted(tensor.name), tensor.shape[0], tensor.type->block_values, tensor.type->name);
    }
    if (offsets_[i] % file_.alignment_ != 0) {
      return corrupt("tensor {} starts at offset {}, which is not a multiple of the alignment {}",
                     gguf_quoted(tensor.name), offsets_[i], file_.alignment_);
    }
    uint64_t size = 0;
    const bool counted =
        multiply(tensor.values() / tensor.type->block_values, tensor.type->block_bytes, size);
    const uint64_t room = tensor_data.size();
    if (!counted || offsets_[i] > room || size > room - offsets_[i]) {
      return corrupt("tensor {} does not end inside the file of {} bytes", gguf_quoted(tensor.name),
                     bytes_.size());
    }
    tensor.data = tensor_data.subspan(offsets_[i], size);
  }
  return {};
}

Status GgufParser::check_overlap() const {
  std::vector<const GgufTensor*> by_place;
  by_place.reserve(file_.tensors_.size());
  for (const GgufTensor& tensor : file_.tensors_) by_place.push_back(&tensor);
  std::sort(by_place.begin(), by_place.end(),
            [](const GgufTensor* a, const GgufTensor* b) { return a->data.data() < b->data.data(); });
  for (size_t i = 1; i < by_place.size(); ++i) {
    const GgufTensor& before = *by_place[i - 1];
    if (before.data.data() + before.data.size() > by_place[i]->data.data()) {
      return corrupt("tensors {} and {} overlap", gguf_quoted(before.name), gguf_quoted(by_place[i]->name));
    }
  }
  return {};
}

Result<Gguf> Gguf::parse(std::span<const std::byte> bytes, std::string origin) {
  return GgufParser(bytes, std::move(origin)).run();
}

}  // namespace kvasir
