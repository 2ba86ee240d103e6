// Server-sent events out of a byte stream that may be cut anywhere.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvasir {

struct SseEvent {
  std::string_view type;  // of the `event` field; empty when the event has none
  std::string_view data;  // the `data` lines, joined by '\n'
};

// Not thread-safe. Follows the WHATWG rules for lines (LF, CRLF or CR), comments, a leading byte order mark
// and events without data, which are dropped; `id` and `retry` are ignored, since nothing here reconnects. An
// event that the stream leaves unfinished is never delivered.
class SseParser {
 public:
  // max_event_bytes bounds what is held between two events: the unfinished line and the data so far.
  explicit SseParser(size_t max_event_bytes) : max_event_bytes_(max_event_bytes) {}

  // Takes the next bytes of the stream and calls on_event(const SseEvent&), whose views end with the call,
  // for each event that they complete. kExhausted when one event is larger than the bound; the parser then
  // stays failed.
  template <typename OnEvent>
  Status feed(std::string_view bytes, OnEvent&& on_event) {
    while (!bytes.empty()) {
      bool dispatch = false;
      KV_RETURN_IF_ERROR(take(&bytes, &dispatch));
      if (!dispatch) continue;
      on_event(SseEvent{type_, data_});
      type_.clear();
      data_.clear();
      has_data_ = false;
    }
    return Status();
  }

 private:
  // Consumes up to the end of one line or of `bytes`. Sets *dispatch when an event is complete in type_ and
  // data_.
  Status take(std::string_view* bytes, bool* dispatch);
  void end_line(bool* dispatch);

  const size_t max_event_bytes_;
  std::string line_;
  std::string type_;
  std::string data_;
  bool has_data_ = false;
  bool after_cr_ = false;   // a LF that comes next belongs to the CR before it
  bool first_line_ = true;  // may begin with a byte order mark
  bool failed_ = false;
};

}  // namespace kvasir
