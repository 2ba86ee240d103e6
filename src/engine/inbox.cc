#include "engine/inbox.h"

#include <algorithm>
#include <chrono>

namespace kvasir {
namespace {

template <typename T>
void make_room(std::vector<T>& list, size_t size) {
  if (list.capacity() < size) list.reserve(std::max<size_t>(16, 2 * size));
}

}  // namespace

Status Inbox::check_open() const {
  if (!draining_ && !stopping_) return {};
  return error(ErrorCode::kUnavailable, "the server is shutting down: try again later, or elsewhere");
}

Result<std::unique_ptr<QueuePlaces>> Inbox::reserve(std::span<const GenerationRequest> requests) {
  for (const GenerationRequest& request : requests) KV_RETURN_IF_ERROR(limits_.check_length(request));
  const uint32_t tenant = requests.front().tenant.id;
  const uint64_t tokens = prompt_tokens_of(requests);
  auto places = std::make_unique<QueuePlaces>([this, tenant](uint64_t left, uint64_t prompt_tokens) {
    std::lock_guard lock(mutex_);
    limits_.give_back(left, {prompt_tokens, tenant});
  });
  std::lock_guard lock(mutex_);
  KV_RETURN_IF_ERROR(check_open());
  KV_RETURN_IF_ERROR(limits_.check_queue(requests));
  limits_.reserve(requests.size(), {tokens, tenant});
  places->got(requests.size(), tokens);
  return places;
}

Result<RequestId> Inbox::submit(GenerationRequest request, std::shared_ptr<OutputSink> sink,
                                QueuePlaces* places) {
  KV_RETURN_IF_ERROR(limits_.check_length(request));
  std::lock_guard lock(mutex_);
  if (places == nullptr || stopping_) KV_RETURN_IF_ERROR(check_open());
  if (places == nullptr) KV_RETURN_IF_ERROR(limits_.check_queue({&request, 1}));
  // Read under the lock, so that requests arrive in the order of their ids.
  const Nanos now = clock_.now();
  make_room(messages_.arrivals, messages_.arrivals.size() + 1);
  make_room(messages_.cancels, 2 * (unfinished_ + 1));
  const QueueLimits::Place place = {request.prompt.size(), request.tenant.id};
  if (places != nullptr) {
    places->used(place.prompt_tokens);
    limits_.give_back(1, place);
  }
  limits_.joined(place, now);
  ++unfinished_;
  const SeqId seq{next_id_++};
  messages_.arrivals.push_back({seq, std::move(request), std::move(sink), now});
  come();
  return RequestId{raw(seq)};
}

void Inbox::cancel(RequestId id, FinishReason reason) {
  std::lock_guard lock(mutex_);
  messages_.cancels.emplace_back(SeqId{raw(id)}, reason);
  come();
}

void Inbox::drain() {
  std::lock_guard lock(mutex_);
  draining_ = true;
}

bool Inbox::wait_idle(Nanos timeout) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, std::chrono::nanoseconds(timeout), [&] { return unfinished_ == 0; });
}

void Inbox::stop() {
  std::lock_guard lock(mutex_);
  stopping_ = true;
  wake_.notify_one();
}

bool Inbox::stopped() const {
  std::lock_guard lock(mutex_);
  return stopping_;
}

void Inbox::wake() {
  std::lock_guard lock(mutex_);
  woken_ = true;
  come();
}

void Inbox::come() {
  if (unheard_since_ == 0) unheard_since_ = std::max<Nanos>(1, clock_.now());
  wake_.notify_one();
}

Inbox::Messages Inbox::take(Messages spent) {
  spent.arrivals.clear();
  spent.cancels.clear();
  spent.arrived = 0;
  std::lock_guard lock(mutex_);
  spent.cancels.reserve(messages_.cancels.capacity());
  woken_ = false;
  unheard_since_ = 0;
  std::swap(messages_, spent);
  return spent;
}

bool Inbox::wait(std::optional<Nanos> timeout) {
  std::unique_lock lock(mutex_);
  const auto news = [&] {
    return stopping_ || woken_ || !messages_.arrivals.empty() || !messages_.cancels.empty();
  };
  if (!timeout) {
    wake_.wait(lock, news);
  } else if (*timeout > 0) {
    wake_.wait_for(lock, std::chrono::nanoseconds(*timeout), news);
  }
  return !stopping_;
}

void Inbox::began(QueueLimits::Place place, Nanos now) {
  std::lock_guard lock(mutex_);
  limits_.began(place, now);
}

void Inbox::left_queue(QueueLimits::Place place) {
  std::lock_guard lock(mutex_);
  limits_.ended(place);
}

void Inbox::ended() {
  std::lock_guard lock(mutex_);
  if (--unfinished_ == 0) idle_.notify_all();
}

}  // namespace kvasir
