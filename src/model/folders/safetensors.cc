// The header is read as a stream of events, not as a tree: names that occur twice are seen, and the memory
// for a hostile header stays that of its tensors.
#include "model/folders/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

namespace kvasir {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is read in place");

constexpr size_t kLengthBytes = sizeof(uint64_t);

// Those that GGUF has under the same names.
constexpr std::string_view kDataTypes[] = {"F32", "BF16", "F16", "F64", "I64", "I32", "I16", "I8"};
// It has neither unsigned bytes nor FP8, which are parts of quantised weights.
constexpr GgufTensorType kOtherTensorTypes[] = {{"U8", kNoGgufType, 1, 1}, {"F8_E4M3", kNoGgufType, 1, 1}};

const GgufTensorType* type_of(std::string_view name) {
  for (const GgufTensorType& type : kOtherTensorTypes) {
    if (name == type.name) return &type;
  }
  if (std::find(std::begin(kDataTypes), std::end(kDataTypes), name) == std::end(kDataTypes)) return nullptr;
  for (uint32_t id = 0; id < 64; ++id) {
    const GgufTensorType* found = gguf_tensor_type(id);
    if (found != nullptr && found->name == name) return found;
  }
  return nullptr;
}

// Takes the events of nlohmann::json's parser. The first fault ends parsing.
class HeaderReader {
 public:
  using json = nlohmann::json;
  HeaderReader(std::span<const std::byte> data, const std::string& origin) : data_(data), origin_(origin) {}

  Status fault = {};
  std::vector<SafetensorsTensor> tensors = {};

  bool null() { return scalar(); }
  bool boolean(bool) { return scalar(); }
  bool number_integer(json::number_integer_t) { return scalar(); }  // negative: no length and no offset
  bool number_float(json::number_float_t, const std::string&) { return scalar(); }
  bool binary(json::binary_t&) { return scalar(); }
  bool number_unsigned(json::number_unsigned_t value) {
    if (in_metadata()) return true;
    if (!in_list_) return scalar();
    if (field_ == Field::kShape) return add_dimension(value);
    if (offsets_ == 2) return bad("its data_offsets are no pair");
    offset_[offsets_++] = value;
    return true;
  }
  bool string(std::string& value) {
    if (in_metadata()) return true;
    if (depth_ != 2 || field_ != Field::kType || in_list_) return scalar();
    type_name_ = value;
    return true;
  }
  bool start_object(size_t) {
    ++depth_;
    if (depth_ == 2 && !is_metadata_) begin_tensor();
    return in_metadata() || (depth_ <= 2 && !in_list_) || bad("an object is where none belongs");
  }
  bool end_object() {
    --depth_;
    if (depth_ != 1) return true;
    if (std::exchange(is_metadata_, false)) return true;
    return end_tensor();
  }
  bool key(std::string& value) {
    if (depth_ == 1) {
      is_metadata_ = value == "__metadata__";
      name_ = value;
      return is_metadata_ || names_.insert(value).second || bad("it is there twice");
    }
    if (in_metadata()) return true;
    field_ = value == "dtype"          ? Field::kType
             : value == "shape"        ? Field::kShape
             : value == "data_offsets" ? Field::kOffsets
                                       : Field::kOther;
    return field_ != Field::kOther || bad(fmt::format("it has the unknown field {}", gguf_quoted(value)));
  }
  bool start_array(size_t) {
    if (in_metadata()) return true;
    const bool wanted = depth_ == 2 && !in_list_ && (field_ == Field::kShape || field_ == Field::kOffsets);
    if (!wanted) return bad("a list is where none belongs");
    in_list_ = true;
    if (field_ == Field::kShape) {
      has_shape_ = true;
      dimensions_.clear();
    } else {
      offsets_ = 0;
    }
    return true;
  }
  bool end_array() {
    if (!in_metadata()) in_list_ = false;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const json::exception&) {
    if (fault.ok()) {
      fault = error(ErrorCode::kCorrupt,
                    "{}: its header is not JSON (at byte {}); the file is damaged; fetch it again", origin_,
                    kLengthBytes + position);
    }
    return false;
  }

 private:
  enum class Field : uint8_t { kOther, kType, kShape, kOffsets };

  bool in_metadata() const { return is_metadata_ && depth_ >= 2; }
  bool scalar() { return in_metadata() || bad("a value is where none belongs"); }
  bool bad(std::string_view what) {
    fault = error(ErrorCode::kCorrupt, "{}: the header's entry {}: {}; the file is damaged; fetch it again",
                  origin_, gguf_quoted(name_), what);
    return false;
  }

  void begin_tensor() {
    type_name_.clear();
    dimensions_.clear();
    has_shape_ = false;
    offsets_ = 0;
    field_ = Field::kOther;
  }
  bool add_dimension(uint64_t value) {
    constexpr size_t kMostDimensions = 16;
    if (dimensions_.size() == kMostDimensions) return bad("it has more than 16 dimensions");
    dimensions_.push_back(value);
    return true;
  }
  bool end_tensor();

  const std::span<const std::byte> data_;
  const std::string& origin_;
  std::unordered_set<std::string> names_;
  int depth_ = 0;  // of objects
  bool is_metadata_ = false;
  bool in_list_ = false;
  // Of the tensor at hand.
  std::string name_;
  Field field_ = Field::kOther;
  std::string type_name_;
  bool has_shape_ = false;
  std::vector<uint64_t> dimensions_;  // the contiguous one last
  uint64_t offset_[2] = {};
  int offsets_ = 0;
};

bool HeaderReader::end_tensor() {
  if (type_name_.empty() || !has_shape_ || offsets_ != 2) {
    return bad("it lacks one of dtype, shape and data_offsets");
  }
  SafetensorsTensor out;
  GgufTensor& tensor = out.tensor;
  tensor.type = type_of(type_name_);
  if (tensor.type == nullptr) {
    fault = error(ErrorCode::kUnsupported,
                  "{}: the tensor {} is of type {}, which is not supported; use a model in BF16, F16 or F32",
                  origin_, gguf_quoted(name_), gguf_quoted(type_name_));
    return false;
  }
  uint64_t bytes = tensor.type->block_bytes;
  tensor.dimensions = static_cast<uint32_t>(std::clamp<size_t>(dimensions_.size(), 1, 4));
  for (size_t i = 0; i < dimensions_.size(); ++i) {
    const uint64_t size = dimensions_[dimensions_.size() - 1 - i];
    if (size == 0 || __builtin_mul_overflow(bytes, size, &bytes)) return bad("its shape makes no sense");
    tensor.shape[std::min<size_t>(i, 3)] *= size;
  }
  if (offset_[0] > offset_[1] || offset_[1] > data_.size()) {
    return bad(fmt::format("its bytes {} to {} do not lie in the {} bytes of data", offset_[0], offset_[1],
                           data_.size()));
  }
  if (offset_[1] - offset_[0] != bytes) {
    return bad(
        fmt::format("it has {} bytes where its type and shape ask for {}", offset_[1] - offset_[0], bytes));
  }
  tensor.data = data_.subspan(offset_[0], bytes);
  out.name = name_;
  tensors.push_back(std::move(out));
  return true;
}

Status check_overlap(const std::vector<SafetensorsTensor>& tensors, const std::string& origin) {
  std::vector<const SafetensorsTensor*> by_place;
  by_place.reserve(tensors.size());
  for (const SafetensorsTensor& tensor : tensors) by_place.push_back(&tensor);
  std::sort(by_place.begin(), by_place.end(),
            [](const auto* a, const auto* b) { return a->tensor.data.data() < b->tensor.data.data(); });
  for (size_t i = 1; i < by_place.size(); ++i) {
    const auto& before = by_place[i - 1]->tensor.data;
    if (before.data() + before.size() <= by_place[i]->tensor.data.data()) continue;
    return error(ErrorCode::kCorrupt,
                 "{}: the tensors {} and {} overlap; the file is damaged; fetch it again", origin,
                 gguf_quoted(by_place[i - 1]->name), gguf_quoted(by_place[i]->name));
  }
  return {};
}

}  // namespace

Result<SafetensorsFile> parse_safetensors(std::span<const std::byte> bytes, const std::string& origin) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with("version https://git-lfs")) {
    return error(ErrorCode::kInvalidArgument,
                 "{}: this is a Git LFS pointer, not the weights; fetch the file itself (git lfs pull)",
                 origin);
  }
  uint64_t length = 0;
  if (text.size() >= kLengthBytes) std::memcpy(&length, text.data(), kLengthBytes);
  if (length < 2 || length > text.size() - std::min(text.size(), kLengthBytes)) {
    return error(ErrorCode::kCorrupt,
                 "{}: its header claims {} bytes and the file has {}: it is damaged, incomplete or no "
                 "safetensors file; fetch it again",
                 origin, length, text.size());
  }
  SafetensorsFile out;
  out.header = bytes.first(kLengthBytes + length);
  HeaderReader reader(bytes.subspan(kLengthBytes + length), origin);
  const bool parsed = nlohmann::json::sax_parse(text.substr(kLengthBytes, length), &reader);
  if (!parsed) return reader.fault;
  KV_RETURN_IF_ERROR(check_overlap(reader.tensors, origin));
  out.tensors = std::move(reader.tensors);
  return out;
}

}  // namespace kvasir
