#include "model/tokenizers/unicode.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>

#include <algorithm>

#include "base/check.h"

namespace kvasir {

bool is_white_space(char32_t code_point) {
  return u_isUWhiteSpace(static_cast<UChar32>(code_point)) != 0;
}

bool compose_utf8(std::string_view text, std::string* out) {
  // Below U+0300 nothing combines.
  if (std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0xCC; })) {
    return false;
  }
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(status);
  KV_CHECK(U_SUCCESS(status), "ICU has no tables: {}", u_errorName(status));
  const icu::StringPiece piece(text.data(), static_cast<int32_t>(text.size()));
  if (nfc->isNormalizedUTF8(piece, status)) return false;
  std::string composed;
  icu::StringByteSink<std::string> sink(&composed);
  nfc->normalizeUTF8(0, piece, sink, nullptr, status);
  KV_CHECK(U_SUCCESS(status), "a text of {} bytes: {}", text.size(), u_errorName(status));
  *out = std::move(composed);
  return true;
}

}  // namespace kvasir
