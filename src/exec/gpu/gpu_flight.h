// A step in the pilot's hands, and the memory that is its own meanwhile.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "contract/step.h"
#include "exec/gpu/gpu.h"
#include "exec/gpu/step_image.h"
#include "exec/gpu/step_mail.h"

namespace kvasir {

struct GpuFlight {
  // Something that the pilot does when the device has come there.
  struct Moment {
    enum class Kind : uint8_t { kMark, kGate } kind;
    uint32_t at;     // the point, or the layer
    uint32_t value;  // of the word
    uint64_t entry;  // of the stream: as many were queued before
  };

  GpuFlight(Gpu& gpu, const GpuModel& model)
      : image(model),
        image_here(gpu, GpuBuffer::Kind::kDevice),
        tokens(gpu, GpuBuffer::Kind::kDevice),
        hidden(gpu, GpuBuffer::Kind::kDevice),
        pinned_image(gpu, GpuBuffer::Kind::kPinned),
        pinned_tokens(gpu, GpuBuffer::Kind::kPinned),
        pinned_hidden(gpu, GpuBuffer::Kind::kPinned),
        pinned_logits(gpu, GpuBuffer::Kind::kPinned) {}

  // Another step comes in.
  void reset(StepLetter& next) {
    letter = &next;
    step = &next.step;
    status = {};
    result = {};
    result.id = step->id;
    moments.clear();
    passed = 0;
    begun = is_queued = is_complete = lacks_room = false;
    entries = 0;
    begin_gate.reset();
    last_gate.reset();
    end_mark = 0;
  }

  StepLetter* letter = nullptr;
  Step* step = nullptr;  // the letter's; null: it has ended
  StepImage image;
  GpuBuffer image_here, tokens, hidden;
  GpuBuffer pinned_image;                  // with new tables behind it
  GpuBuffer pinned_tokens, pinned_hidden;  // what came of it
  GpuBuffer pinned_logits;                 // [rows whose logits the host reads][vocabulary]

  Status status;  // not ok: it does not run
  StepResult result;
  std::vector<Moment> moments;
  size_t passed = 0;         // of those, the first so many
  bool begun = false;        // its transfers are StepTransfers' own
  bool is_queued = false;    // its layers are
  bool is_complete = false;  // its tokens are, too, so that another step can be queued behind it
  uint64_t entries = 0;      // of the stream; at most so many it is
  bool lacks_room = false;   // for these, in the stream behind the step before
  std::optional<uint32_t> begin_gate;
  std::optional<uint32_t> last_gate;
  uint32_t end_mark = 0;
};

}  // namespace kvasir
