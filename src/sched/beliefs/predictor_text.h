// The first line of a predictor's text, and the error for a text that cannot be read.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "base/status.h"
#include "sched/beliefs/text_fields.h"

namespace kvasir {

inline constexpr std::string_view kPredictorWord = "kvasir-length-predictor";
inline constexpr uint64_t kPredictorVersion = 1;

inline std::string predictor_head(std::string_view kind) {
  return fmt::format("{} {} {}\n", kPredictorWord, kind, kPredictorVersion);
}

inline bool read_predictor_head(std::string_view kind, TextFields& in) {
  uint64_t version = 0;
  return in.word(kPredictorWord) && in.word(kind) && in.number(UINT64_MAX, version) &&
         version == kPredictorVersion;
}

inline Status not_of_predictor(std::string_view kind) {
  return error(ErrorCode::kCorrupt,
               "not what the length predictor '{}' has saved: remove the file, or name another", kind);
}

}  // namespace kvasir
