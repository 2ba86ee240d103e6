#include "cache/sequences/steps_in_flight.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvasir {

void StepsInFlight::submit(StepId id, std::vector<Part> parts) {
  next_.id = id;
  next_.parts = std::move(parts);
  records_.push_back(std::exchange(next_, {}));
}

bool StepsInFlight::pin(BlockId block) {
  if (records_.empty()) return false;
  std::vector<BlockId>& pinned = records_.back().pinned;
  if (!pinned.empty() && pinned.back() == block) return false;
  pinned.push_back(block);
  return true;
}

bool StepsInFlight::keep_back(StepId step, Transfer& transfer) {
  const auto found =
      std::find_if(records_.begin(), records_.end(), [&](const Record& r) { return r.id == step; });
  if (found == records_.end()) return false;
  found->transfers.push_back(std::move(transfer));
  return true;
}

void StepsInFlight::spoil(SeqId seq) {
  for (Record& record : records_) {
    for (Part& part : record.parts) part.spoilt |= part.seq == seq;
  }
}

uint32_t StepsInFlight::first_row(SeqId seq, uint64_t generation, uint32_t end) const {
  for (const Record& record : records_) {
    for (const Part& part : record.parts) {
      const bool counts = part.seq == seq && part.generation == generation && !part.spoilt && !part.restores;
      if (counts) end = std::min(end, part.rows.begin);
    }
  }
  return end;
}

uint32_t StepsInFlight::first_position(SeqId seq, uint32_t end) const {
  for (const Record& record : records_) {
    for (const Part& part : record.parts) {
      if (part.seq == seq) end = std::min(end, part.rows.begin);
    }
  }
  return end;
}

std::array<uint32_t, kPlaces> StepsInFlight::frames() const {
  std::array<uint32_t, kPlaces> frames{};
  const auto count = [&](const Record& record) {
    for (const Fill& f : record.fills) ++frames[index_of(f.place)];
  };
  count(next_);
  for (const Record& record : records_) count(record);
  return frames;
}

StepsInFlight::Record StepsInFlight::end(StepId id) {
  KV_CHECK(!records_.empty() && records_.front().id == id, "step={}", raw(id));
  Record record = std::move(records_.front());
  records_.pop_front();
  return record;
}

}  // namespace kvasir
