// A sink that has memory at any time.
#pragma once

#include <utility>

#include "engine/collecting_sink.h"
#include "memory/failing_new.h"

namespace kvasir::test {

class SparedSink final : public OutputSink {
 public:
  void on_output(OutputEvent event) override {
    const Spared spared;
    heard.on_output(std::move(event));
  }
  CollectingSink heard;
};

}  // namespace kvasir::test
