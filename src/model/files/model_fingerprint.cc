// SHA-256 over the headers and both ends of every tensor.
#include <openssl/evp.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/units.h"
#include "model/files/model_file.h"
#include "model/quantize/quantize_row.h"

namespace kvasir {
namespace {

constexpr size_t kEndBytes = 4 * kKiB;

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    KV_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1,
             "libcrypto offers no SHA-256");
  }
  void add(std::span<const std::byte> bytes) {
    KV_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1, "{} bytes", bytes.size());
  }
  ModelFingerprint finish() {
    ModelFingerprint out = {};
    unsigned int size = 0;
    KV_CHECK(EVP_DigestFinal_ex(context_.get(), out.data(), &size) == 1 && size == out.size(), "size={}",
             size);
    return out;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

// Of what they are made of, `data` is only a part.
void add_made_rows(const GgufTensor& tensor, Sha256& hash) {
  std::vector<std::byte> row(tensor.shape[0] / tensor.type->block_values * tensor.type->block_bytes);
  const auto rows = static_cast<int64_t>(tensor.values() / tensor.shape[0]);
  for (const int64_t end : {int64_t{0}, rows - 1}) {
    tensor.rows->read(end, row.data());
    hash.add(row);
  }
}

}  // namespace

ModelFingerprint fingerprint_of(const Gguf& file) {
  Sha256 hash;
  for (const std::span<const std::byte> header : file.headers()) hash.add(header);
  for (const GgufTensor& tensor : file.tensors()) {
    const size_t end_bytes = std::min(tensor.data.size(), kEndBytes);
    hash.add(tensor.data.first(end_bytes));
    hash.add(tensor.data.last(end_bytes));
    if (tensor.rows != nullptr) add_made_rows(tensor, hash);
  }
  return hash.finish();
}

ModelFingerprint fingerprint_of(const ModelFingerprint& stored, const QuantizationRecipe& recipe) {
  const std::string how = fmt::format("{} {}", recipe.name, kQuantizerVersion);
  Sha256 hash;
  hash.add(std::as_bytes(std::span(stored)));
  hash.add(std::as_bytes(std::span(how)));
  return hash.finish();
}

std::string to_hex(const ModelFingerprint& fingerprint) {
  std::string out;
  for (uint8_t byte : fingerprint) out += fmt::format("{:02x}", byte);
  return out;
}

}  // namespace kvasir
