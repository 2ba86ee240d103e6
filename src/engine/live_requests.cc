#include "engine/live_requests.h"

#include <algorithm>
#include <new>
#include <tuple>

#include "base/check.h"

namespace kvasir {

void log_request(LogLevel level, const LiveRequest& live, std::string_view message) {
  const RequestLabel* const label = live.label.get();
  log_line(level, message,
           {{"request_id", label ? std::string_view(label->id) : std::string_view("-")},
            {"key", label ? std::string_view(label->key) : std::string_view("-")}});
}

LiveRequest& LiveRequests::add(std::unique_ptr<LiveRequest> live) {
  LiveRequest& ref = *live;
  const bool is_new = by_id_.try_emplace(ref.id, std::move(live)).second;
  KV_CHECK(is_new, "seq={}", raw(ref.id));
  try {
    enter(ref);
  } catch (const std::bad_alloc&) {
    by_id_.erase(ref.id);
    throw;
  }
  return ref;
}

void LiveRequests::remove(LiveRequest& live) {
  leave(live);
  const SeqId id = live.id;
  by_id_.erase(id);
}

LiveRequest* LiveRequests::find(SeqId id) {
  const std::unique_ptr<LiveRequest>* const live = by_id_.find(id);
  return live ? live->get() : nullptr;
}

std::vector<SeqId> LiveRequests::ids() const {
  std::vector<SeqId> out;
  for (const auto& [id, live] : by_id_) out.push_back(id);
  std::sort(out.begin(), out.end());
  return out;
}

void LiveRequests::set_state(LiveRequest& live, LiveRequest::State state) {
  if (live.state == state) return;
  leave(live);
  live.state = state;
  enter(live);
}

void LiveRequests::hold(std::span<LiveRequest* const> requests) {
  if (requests.empty()) return;
  for (LiveRequest* live : requests) {
    KV_CHECK(live->state == LiveRequest::State::kWaiting, "seq={}", raw(live->id));
    live->state = LiveRequest::State::kHeld;
  }
  held_ += requests.size();
  std::erase_if(view_.waiting,
                [&](const SeqView& s) { return find(s.id)->state == LiveRequest::State::kHeld; });
}

void LiveRequests::release(std::span<LiveRequest* const> requests) {
  const auto before = [](const SeqView& a, const SeqView& b) {
    return std::tuple(a.arrival, raw(a.id)) < std::tuple(b.arrival, raw(b.id));
  };
  const auto waited = static_cast<ptrdiff_t>(view_.waiting.size());
  for (LiveRequest* live : requests) {
    KV_CHECK(live->state == LiveRequest::State::kHeld, "seq={}", raw(live->id));
    live->state = LiveRequest::State::kWaiting;
    view_.waiting.push_back(line_of(*live));
  }
  held_ -= requests.size();
  const auto added = view_.waiting.begin() + waited;
  std::sort(added, view_.waiting.end(), before);
  std::inplace_merge(view_.waiting.begin(), added, view_.waiting.end(), before);
}

SeqView LiveRequests::line_of(const LiveRequest& live) {
  SeqView line;
  line.id = live.id;
  line.arrival = live.arrival;
  return line;
}

void LiveRequests::enter(LiveRequest& live) {
  const SeqView line = line_of(live);
  if (live.state == LiveRequest::State::kWaiting) {
    const auto place = static_cast<ptrdiff_t>(waiting_place(live));
    view_.waiting.insert(view_.waiting.begin() + place, line);
  } else if (live.state == LiveRequest::State::kRunning) {
    view_.running.push_back(line);
    running_.push_back(&live);
  }
  held_ += live.state == LiveRequest::State::kHeld;
}

void LiveRequests::leave(LiveRequest& live) {
  held_ -= live.state == LiveRequest::State::kHeld;
  if (live.state == LiveRequest::State::kWaiting) {
    view_.waiting.erase(view_.waiting.begin() + static_cast<ptrdiff_t>(waiting_place(live)));
  } else if (live.state == LiveRequest::State::kRunning) {
    const auto place = std::find(running_.begin(), running_.end(), &live) - running_.begin();
    view_.running.erase(view_.running.begin() + place);
    running_.erase(running_.begin() + place);
  }
}

size_t LiveRequests::waiting_place(const LiveRequest& live) const {
  const auto key = std::tuple(live.arrival, raw(live.id));
  auto it =
      std::lower_bound(view_.waiting.begin(), view_.waiting.end(), key,
                       [](const SeqView& s, const auto& k) { return std::tuple(s.arrival, raw(s.id)) < k; });
  return static_cast<size_t>(it - view_.waiting.begin());
}

SeqView& LiveRequests::view_of(LiveRequest& live) {
  if (live.state == LiveRequest::State::kWaiting) return view_.waiting[waiting_place(live)];
  const auto place = std::find(running_.begin(), running_.end(), &live) - running_.begin();
  KV_CHECK(live.state == LiveRequest::State::kRunning, "seq={}", raw(live.id));
  return view_.running[static_cast<size_t>(place)];
}

}  // namespace kvasir
