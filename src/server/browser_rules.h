// What browsers may do: which pages read answers (CORS), and which pages and names a server without keys
// refuses, so that a web page cannot use it behind its user's back.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/api_error.h"
#include "server/request_head.h"

namespace kvasir {

struct BrowserOptions {
  // Origins whose pages may use the server, as "https://chat.example" or "http://localhost:3000"; "*": any.
  std::vector<std::string> cors_origins;
  // Names by which clients may call it, without a port; "*": any. Empty: any, but for a server without keys
  // those of this machine. An address is no name: no name server decides over it, and it is always allowed.
  std::vector<std::string> allowed_hosts;
};

// kInvalidArgument names the flag, and what is no origin or no name.
Status check_browser_options(const BrowserOptions& options);

// Never changed once it is made.
class BrowserRules {
 public:
  // Everything is allowed, and no page may read answers.
  BrowserRules() = default;
  // `names` are those of this machine.
  BrowserRules(const BrowserOptions& options, bool needs_key, std::vector<std::string> names);

  // 403: the request came under a foreign name (DNS rebinding), or from a page that may not send it.
  std::optional<ApiError> refusal(const RequestHead& head) const;
  // Header lines for every answer to this request.
  std::string answer_headers(const RequestHead& head) const;
  // The further header lines with which a preflight is allowed, and nothing if the request is none.
  std::optional<std::string> preflight(const RequestHead& head) const;

 private:
  bool allows_host(std::string_view authority) const;
  bool allows_origin(std::string_view origin) const;

  bool any_origin_ = false;
  bool checks_origins_ = false;  // no key does
  bool checks_hosts_ = false;
  std::vector<std::string> origins_;
  std::vector<std::string> hosts_;
};

}  // namespace kvasir
