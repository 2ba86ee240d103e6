// The files of the pages for browsers, embedded when the program is built (cmake/web_assets.cmake).
#pragma once

#include <span>
#include <string_view>

namespace kvasir {

struct WebAsset {
  std::string_view path;          // below /assets/
  std::string_view content_type;  // of HTTP
  std::string_view tag;           // of these bytes: hexadecimal digits
  std::string_view bytes;
  std::string_view gzip;  // the same compressed; empty: it would save little
};

// Sorted by path.
std::span<const WebAsset> web_assets();

}  // namespace kvasir
