// The head of an HTTP/1.1 request, read strictly (RFC 9112): what another parser could read in another way is
// refused, so that no proxy in front and this server can disagree about where a request ends.
// docs/http.md has the table of what is refused and how.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "server/api_error.h"

namespace kvasir {

// Finds the end of a head in bytes that arrive piece by piece. Each byte is looked at once.
class HeadScanner {
 public:
  // kBadByte: a byte that no head has, such as a bare CR or LF, NUL, or another control character.
  enum class Verdict { kMore, kComplete, kBadByte };

  // `all` is what has arrived so far, from the first byte on.
  Verdict scan(std::string_view all);
  // Of `all`: the head with its empty line. One empty line before it is left out (RFC 9112, section 2.2).
  // REQUIRES: scan() gave kComplete.
  std::string_view head(std::string_view all) const { return all.substr(begin_, end_ - begin_); }
  // The bytes up to the end of the head. REQUIRES: scan() gave kComplete.
  size_t end() const { return end_; }
  // Whether the request line ends within the first `most` bytes of `all`.
  bool line_ends_within(std::string_view all, size_t most) const {
    return all.substr(0, most).find('\n', begin_) != std::string_view::npos;
  }

 private:
  size_t seen_ = 0;
  size_t line_ = 0;   // where the current line begins
  size_t begin_ = 0;  // of the head
  size_t end_ = 0;
};

// Names and values, in the order and case as sent.
using HeaderList = std::vector<std::pair<std::string_view, std::string_view>>;

// The first header of this name, in upper or lower case; empty if there is none.
std::string_view find_header(const HeaderList& headers, std::string_view name);

// Views are into the text that was read.
struct RequestHead {
  std::string_view method;
  std::string target;          // origin-form, or "*" of OPTIONS
  std::string_view authority;  // host and perhaps port, of the target or else of Host; empty only in HTTP/1.0
  int minor_version = 1;       // of HTTP/1
  HeaderList headers;
  // At most one of the two; without them there is no body.
  std::optional<uint64_t> content_length;
  bool chunked = false;
  bool keep_alive = true;

  std::string_view header(std::string_view name) const { return find_header(headers, name); }
};

// `text` is a head with its empty line, as HeadScanner found it. An error is 400, 501 for a transfer coding
// that is not known, or 505; the connection must be closed behind it. Pure.
std::variant<RequestHead, ApiError> read_head(std::string_view text);

// Whether both are the same, in upper or lower case of ASCII.
bool equal_ignoring_case(std::string_view a, std::string_view b);

// Of a host with perhaps a port ("[::1]:80"): the host, with the brackets of an IPv6 address.
std::string_view host_of(std::string_view authority);

}  // namespace kvasir
