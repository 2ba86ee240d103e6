#include "apps/bench/sse.h"

namespace kvasir {

Status SseParser::take(std::string_view* bytes, bool* dispatch) {
  if (after_cr_) {
    after_cr_ = false;
    if (bytes->front() == '\n') {
      bytes->remove_prefix(1);
      return Status();
    }
  }
  const size_t end = bytes->find_first_of("\r\n");
  const size_t taken = end == std::string_view::npos ? bytes->size() : end;
  if (failed_ || line_.size() + data_.size() + taken > max_event_bytes_) {
    failed_ = true;
    return error(ErrorCode::kExhausted, "a server-sent event is larger than {} bytes", max_event_bytes_);
  }
  line_.append(bytes->substr(0, taken));
  bytes->remove_prefix(taken);
  if (bytes->empty()) return Status();
  after_cr_ = bytes->front() == '\r';
  bytes->remove_prefix(1);
  end_line(dispatch);
  line_.clear();
  return Status();
}

void SseParser::end_line(bool* dispatch) {
  std::string_view line = line_;
  if (first_line_ && line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);
  first_line_ = false;
  if (line.empty()) {
    *dispatch = has_data_;
    if (!has_data_) type_.clear();
    return;
  }
  const size_t colon = line.find(':');
  const std::string_view field = line.substr(0, colon);
  std::string_view value = colon == std::string_view::npos ? std::string_view() : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (field == "data") {
    if (has_data_) data_.push_back('\n');
    data_.append(value);
    has_data_ = true;
  } else if (field == "event") {
    type_ = value;
  }
}

}  // namespace kvasir
