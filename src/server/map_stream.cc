#include "server/map_stream.h"

#include <utility>

#include "server/http_message.h"

namespace kvasir {
namespace {

// Of lines that the client has not read yet: beyond, frames are left out.
constexpr size_t kMostUnsent = 512 * 1024;

}  // namespace

void MapStream::start() {
  channel_->begin_stream(": cut off\n\n");
  viewer_ =
      map_.join([weak = weak_from_this(), post = post_](const std::shared_ptr<const std::string>& line) {
        post([weak, line] {
          if (const auto self = weak.lock()) self->on_line(*line);
        });
      });
}

void MapStream::on_line(const std::string& line) {
  if (channel_ == nullptr || behind_) return;
  if (out_of_step_ && !line.starts_with(R"({"kvasir_map":)")) return;
  if (channel_->unsent_bytes() > kMostUnsent) {
    behind_ = true;
    return;
  }
  out_of_step_ = false;
  channel_->stream(server_sent_event(line));
}

void MapStream::on_drained() {
  if (!std::exchange(behind_, false)) return;
  out_of_step_ = true;
  map_.send_whole(viewer_);
}

void MapStream::on_server_drains() {
  // The end of the stream aborts this object.
  if (channel_ != nullptr) channel_->end_stream();
}

void MapStream::abort() {
  channel_ = nullptr;
  if (const uint64_t viewer = std::exchange(viewer_, 0); viewer != 0) map_.leave(viewer);
}

}  // namespace kvasir
