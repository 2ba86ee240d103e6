// A Link in memory, for tests: transfers end when the test says so, and can fail, stall or be refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "contract/link.h"

namespace kvasir::test {

// Thread-safe.
class FakeLink final : public Link {
 public:
  // The clock stamps the transfers and outlives the link. start() is refused when `capacity` are queued.
  explicit FakeLink(const Clock& clock, size_t capacity = SIZE_MAX) : clock_(clock), capacity_(capacity) {}

  Status start(const Transfer& transfer) override;
  std::vector<TransferDone> completed() override;

  // Ends the transfer whose turn it is: the most urgent, and of those the first queued. False: there is none,
  // or the link is stalled.
  bool complete_next(Status status = {});
  // Ends every queued transfer; returns how many.
  size_t complete_all();
  // While stalled nothing ends.
  void stall(bool on);
  // While refusing, every start() is kExhausted.
  void refuse(bool on);
  size_t queued() const;

 private:
  struct Queued {
    Transfer transfer;
    Nanos started;
  };

  const Clock& clock_;
  const size_t capacity_;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<Queued> queue_;
  std::vector<TransferDone> done_;
  bool stalled_ = false;
  bool refusing_ = false;
};

}  // namespace kvasir::test
