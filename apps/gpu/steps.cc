// Steps of decoding one after the other, queued as the executor's pilot queues them: each kernel by itself,
// or the layers as a graph.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "apps/gpu/floors.h"
#include "apps/gpu/parts.h"
#include "apps/gpu/whole_pass.h"
#include "exec/cuda/cuda_gpu.h"

namespace kvasir::gpu_program {
namespace {

constexpr int kSteps = 60;  // that are measured
constexpr size_t kImageBytes = 32 << 10;
constexpr size_t kFlagBytes = 1 << 10;
// Words of the mark and of the gate, apart from each other.
constexpr size_t kMarkWord = 0, kGateWord = 32, kWords = 64;

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void must(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

class Steps {
 public:
  struct Times {
    double step_us;  // from the end of one to the end of the next
    double host_us;  // of that, the thread that queues
  };

  // The passes are run in turn.
  Steps(Gpu& gpu, const std::vector<std::unique_ptr<Pass>>& passes, int sequences)
      : gpu_(gpu),
        passes_(passes),
        token_bytes_(static_cast<size_t>(sequences) * sizeof(int32_t)),
        image_(kImageBytes),
        pinned_image_(kImageBytes),
        pinned_tokens_(static_cast<size_t>(sequences)),
        words_(kWords) {
    std::fill_n(words_.data(), kWords, 0U);
    auto made = gpu.make_stream();
    must(made.status());
    stream_ = std::move(made).value();
  }

  // depth: steps that are queued at a time, 1 or 2.
  Times run(int depth, bool graphs) {
    // Both graphs are made while no gate is closed.
    const uint32_t warm = queued_ + 6, last = warm + kSteps;
    while (queued_ < warm) {
      queue(false, graphs);
      wait_for(queued_);
    }
    double host_us = 0;
    const auto queue_one = [&](bool is_behind) {
      const double begin = now_us();
      queue(is_behind, graphs);
      host_us += now_us() - begin;
    };
    const double begin = now_us();
    for (uint32_t step = warm + 1; step <= last; ++step) {
      if (queued_ < step) queue_one(false);
      if (depth == 2 && step < last) queue_one(true);
      wait_for(step);
      gpu_.open_gate(words_.data() + kGateWord, step + 1);
    }
    return {(now_us() - begin) / kSteps, host_us / kSteps};
  }
  // Whether a graph did not take the arguments of the next step. From then on there are none.
  bool is_refused() const { return is_refused_; }
  // Of the step that ran last.
  std::vector<float> logits() const { return passes_[queued_ % passes_.size()]->logits(); }

 private:
  void queue(bool is_behind, bool graphs) {
    const uint32_t step = ++queued_;
    const Pass& pass = *passes_[step % passes_.size()];
    copy(image_.data(), pinned_image_.data(), kImageBytes);
    if (is_behind) {
      stream_->gate(words_.data() + kGateWord, step);
      copy(image_.data(), pinned_image_.data(), kFlagBytes);
    }
    const bool as_graph = graphs && !is_refused_;
    if (as_graph) stream_->begin_graph(step % 2);
    pass.queue_all_layers(*stream_);
    if (as_graph && !stream_->end_graph()) {
      is_refused_ = true;  // to make another would wait for the gate
      pass.queue_all_layers(*stream_);
    }
    pass.queue_tokens(*stream_);
    copy(pinned_tokens_.data(), pass.tokens(), token_bytes_);
    stream_->mark(words_.data() + kMarkWord, step);
  }
  void copy(void* to, const void* from, size_t bytes) {
    const GpuCopy one = {to, from, bytes};
    stream_->copy({&one, 1});
  }
  void wait_for(uint32_t step) {
    static const std::atomic<bool> never{false};
    must(stream_->wait_for_mark(words_.data() + kMarkWord, step, never));
  }

  Gpu& gpu_;
  const std::vector<std::unique_ptr<Pass>>& passes_;
  const size_t token_bytes_;
  DeviceArray<std::byte> image_;
  PinnedArray<std::byte> pinned_image_;
  PinnedArray<int32_t> pinned_tokens_;
  PinnedArray<uint32_t> words_;
  std::unique_ptr<GpuStream> stream_;
  uint32_t queued_ = 0;
  bool is_refused_ = false;
};

}  // namespace

void bench_steps(const Options& options, Report& report) {
  auto opened = cuda::open_gpu();
  must(opened.status());
  const std::unique_ptr<Gpu> gpu = std::move(opened).value();
  constexpr int kContext = 1024;
  int bad = 0;
  bool is_refused = false;
  for (const std::string& shape : {options.shape, std::string("llama-3.2-1b")}) {
    const RandomModel model(spec_of(shape));
    for (const int batch : {1, 8, 32}) {
      const Cache cache(model.model().spec, batch, kContext);
      // At three positions, so that a graph gets other arguments each time. What each writes, the next reads.
      std::vector<std::unique_ptr<Pass>> passes;
      for (int end = kContext - 2; end <= kContext; ++end) {
        passes.push_back(std::make_unique<Pass>(model, cache, batch, end - 1, end, 1));
      }
      const Stream alone;
      StreamQueue queue(multiprocessors(), /*overlaps=*/true, alone.get());
      const double device_us = graph_us(alone, 1, 1, [&](int) { passes[0]->queue(queue); });
      Steps steps(*gpu, passes, batch);
      std::vector<float> expected;
      for (const int depth : {1, 2}) {
        for (const bool graphs : {false, true}) {
          const Steps::Times times = steps.run(depth, graphs);
          const std::vector<float> logits = steps.logits();
          if (expected.empty()) expected = logits;
          const bool same = same_bits(expected, logits);
          bad += same && all_numbers(logits) ? 0 : 1;
          const double pause_us = times.step_us - device_us;
          report.add(
              {{"part", "steps"},
               {"what", "steps"},
               {"shape", shape},
               {"batch", batch},
               {"context", kContext},
               {"depth", depth},
               {"graphs", graphs},
               {"us", times.step_us},
               {"device_us", device_us},
               {"pause_us", pause_us},
               {"host_us", times.host_us},
               {"refused", steps.is_refused()},
               {"finite", all_numbers(logits)},
               {"same_bits", same}},
              text_of("%-12s batch %2d, depth %d, %s: a step %8.1f us, of it the pause %7.1f us; queueing "
                      "takes the host %7.1f us%s",
                      shape.c_str(), batch, depth, graphs ? "graphs " : "kernels", times.step_us, pause_us,
                      times.host_us, same ? "" : ", OTHER BITS than kernels at depth 1"));
        }
      }
      is_refused |= steps.is_refused();
    }
  }
  must_be_good(bad);
  if (is_refused) throw std::runtime_error("a graph did not take the arguments of the next step");
}

}  // namespace kvasir::gpu_program
