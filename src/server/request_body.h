// The body of a request as its bytes arrive: of a known length, or chunked (RFC 9112, section 7.1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvasir {

// Chunks are read strictly, as the head is (request_head.h). Extensions and trailers are checked and dropped.
class RequestBody {
 public:
  enum class Fault { kNone, kTooLarge, kMalformed };
  // Of the bytes of all chunk extensions and trailers of one body.
  static constexpr size_t kMaxExtraBytes = 16 * 1024;

  // No body.
  RequestBody() = default;
  // Exactly `bytes`, or at most `most` in chunks.
  static RequestBody of_length(uint64_t bytes);
  static RequestBody of_chunks(uint64_t most);

  // Appends to `body` what `arrived` has of it, and returns how many bytes of `arrived` were used: all of
  // them, unless the body is done or there is a fault. REQUIRES: neither.
  size_t take(std::string_view arrived, std::string& body);
  bool done() const { return state_ == State::kDone; }
  Fault fault() const { return fault_; }

 private:
  enum class State {
    kDone,
    kLength,  // the bytes of a body without chunks
    kSizeFirst,
    kSize,
    kExtension,
    kSizeLf,
    kData,
    kDataCr,
    kDataLf,
    kTrailer,  // the first character of a trailer line, or the empty line
    kTrailerName,
    kTrailerValue,
    kTrailerLf,
    kEndLf,
  };
  // The state after a character outside of the data.
  State next(char c);
  State size_digit(char c);
  State extra(char c, State same);
  State fail(Fault fault);

  State state_ = State::kDone;
  Fault fault_ = Fault::kNone;
  uint64_t left_ = 0;  // of the body's or chunk's bytes
  uint64_t most_ = 0;  // what further chunks may have
  size_t digits_ = 0;  // of the size that is being read
  size_t extra_ = 0;
};

}  // namespace kvasir
