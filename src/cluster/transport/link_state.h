// The bookkeeping of one link between two endpoints, independent of the library that carries it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/clock.h"

namespace kvasir {

// Time in which this process has run: a process that was stopped or starved must not take its peers for
// dead.
// Not thread-safe.
class RunTime {
 public:
  // At most `stride` counts between two calls.
  explicit RunTime(Nanos stride) : stride_(stride) {}
  // Takes the clock's time, returns the run time.
  Nanos at(Nanos now);

 private:
  const Nanos stride_;
  Nanos last_ = 0;
  Nanos run_ = 0;
  bool began_ = false;
};

// What the sender knows of the far end of a link: how many frames it has taken, and since when it has taken
// none. Not thread-safe.
class SendProgress {
 public:
  // A frame has been handed to the library.
  void sent(Nanos now);
  // The far end reports that it has taken `total` frames. False: this is impossible, the link is broken.
  [[nodiscard]] bool taken(uint64_t total, Nanos now);
  // Something was sent, and nothing of it taken for longer than `deadline`.
  bool overdue(Nanos now, Nanos deadline) const { return sent_ != taken_ && now - since_ > deadline; }
  uint64_t frames_sent() const { return sent_; }

 private:
  uint64_t sent_ = 0;
  uint64_t taken_ = 0;
  Nanos since_ = 0;
};

// The receiver's reports to the sender of a link: the number of frames that it took. Not thread-safe.
class TakenReports {
 public:
  void took() { ++taken_; }
  // The number to report, which then counts as reported; 0: nothing new.
  uint64_t due();

 private:
  uint64_t taken_ = 0;
  uint64_t reported_ = 0;
};

// A message, or its next part.
struct MessagePart {
  uint64_t message_bytes = 0;  // of all its parts
  std::vector<std::byte> bytes;
};

// Brings parts that arrive out of order back into order. Not thread-safe.
class Reorder {
 public:
  bool is_next(uint64_t sequence) const { return sequence == next_; }
  // The next part in order has been handled; returns the held parts that follow it.
  std::vector<MessagePart> pass();
  // Holds a part that arrived early. False: it is a duplicate, the link is broken.
  [[nodiscard]] bool hold(uint64_t sequence, MessagePart part);
  size_t held_bytes() const { return held_bytes_; }
  size_t held_parts() const { return held_.size(); }

 private:
  uint64_t next_ = 0;
  std::map<uint64_t, MessagePart> held_;
  size_t held_bytes_ = 0;
};

// Puts a message together from its parts. Not thread-safe.
class Assembly {
 public:
  // False: the part does not fit the ones before it, the link is broken. The first part allocates
  // message_bytes.
  [[nodiscard]] bool add(uint64_t message_bytes, std::span<const std::byte> part);
  // Whether the message is complete: then take() returns it, and the next part begins another.
  bool whole() const { return open_ && message_.size() == message_bytes_; }
  std::vector<std::byte> take();

 private:
  bool open_ = false;
  uint64_t message_bytes_ = 0;
  std::vector<std::byte> message_;
};

}  // namespace kvasir
