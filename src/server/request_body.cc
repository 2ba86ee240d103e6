// A state for each place in the framing.
#include "server/request_body.h"

#include <algorithm>

#include "base/check.h"
#include "server/http_syntax.h"

namespace kvasir {

RequestBody RequestBody::of_length(uint64_t bytes) {
  RequestBody body;
  body.left_ = bytes;
  body.state_ = bytes > 0 ? State::kLength : State::kDone;
  return body;
}

RequestBody RequestBody::of_chunks(uint64_t most) {
  RequestBody body;
  body.most_ = most;
  body.state_ = State::kSizeFirst;
  return body;
}

size_t RequestBody::take(std::string_view arrived, std::string& body) {
  KV_CHECK(!done() && fault_ == Fault::kNone, "a body takes bytes behind its end");
  size_t used = 0;
  while (used < arrived.size() && !done() && fault_ == Fault::kNone) {
    if (state_ != State::kLength && state_ != State::kData) {
      state_ = next(arrived[used++]);
      continue;
    }
    const auto bytes = static_cast<size_t>(std::min<uint64_t>(left_, arrived.size() - used));
    body.append(arrived.substr(used, bytes));
    used += bytes;
    left_ -= bytes;
    if (left_ == 0) state_ = state_ == State::kData ? State::kDataCr : State::kDone;
  }
  return used;
}

RequestBody::State RequestBody::next(char c) {
  switch (state_) {
    case State::kSizeFirst:
      left_ = 0;
      digits_ = 0;
      return size_digit(c);
    case State::kSize:
      if (c == '\r') return State::kSizeLf;
      if (c == ';') return extra(c, State::kExtension);
      return size_digit(c);
    case State::kExtension:
      return c == '\r' ? State::kSizeLf : extra(c, State::kExtension);
    case State::kSizeLf:
      if (c != '\n') break;
      return left_ > 0 ? State::kData : State::kTrailer;
    case State::kDataCr:
      if (c != '\r') break;
      return State::kDataLf;
    case State::kDataLf:
      if (c != '\n') break;
      return State::kSizeFirst;
    case State::kTrailer:
      if (c == '\r') return State::kEndLf;
      if (!is_token_char(c)) break;
      return extra(c, State::kTrailerName);
    case State::kTrailerName:
      if (c == ':') return extra(c, State::kTrailerValue);
      if (!is_token_char(c)) break;
      return extra(c, State::kTrailerName);
    case State::kTrailerValue:
      return c == '\r' ? State::kTrailerLf : extra(c, State::kTrailerValue);
    case State::kTrailerLf:
      if (c != '\n') break;
      return State::kTrailer;
    case State::kEndLf:
      if (c != '\n') break;
      return State::kDone;
    case State::kDone:
    case State::kLength:
    case State::kData:
      KV_CHECK(false, "no framing here");
  }
  return fail(Fault::kMalformed);
}

// Hexadecimal, without sign, prefix or space. Sixteen digits fit 64 bits.
RequestBody::State RequestBody::size_digit(char c) {
  const int digit = hex_value(c);
  if (digit < 0 || ++digits_ > 16) return fail(Fault::kMalformed);
  most_ += left_;
  left_ = left_ * 16 + static_cast<uint64_t>(digit);
  if (left_ > most_) return fail(Fault::kTooLarge);
  most_ -= left_;
  return State::kSize;
}

RequestBody::State RequestBody::extra(char c, State same) {
  if (!is_field_char(c)) return fail(Fault::kMalformed);
  return ++extra_ > kMaxExtraBytes ? fail(Fault::kMalformed) : same;
}

RequestBody::State RequestBody::fail(Fault fault) {
  fault_ = fault;
  return state_;
}

}  // namespace kvasir
