// How the bytes of a connection are read as requests, without a server.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvasir::test {

// What is read of `bytes` if they arrive in pieces of `piece`: for each request its method, target, headers,
// framing and body, then "error STATUS" or what is missing.
std::string read_requests(std::string_view bytes, size_t piece);

// Aborts unless pieces of several sizes give the same, and Beast's parser, where it takes the first request,
// too, finds in it what we do: it has fewer bounds, and is lenient where we are strict.
void check_framing(std::string_view bytes);

}  // namespace kvasir::test
