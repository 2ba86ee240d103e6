#include "apps/gpu/device.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace kvasir::gpu_program {
namespace {

constexpr int kGraphRepeats = 7;

class Graph {
 public:
  Graph(const Stream& stream, int launches, const std::function<void(int)>& launch) {
    must(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    for (int i = 0; i < launches; ++i) launch(i);
    must(cudaStreamEndCapture(stream.get(), &graph_), "cudaStreamEndCapture");
    must(cudaGraphInstantiate(&ready_, graph_, 0), "cudaGraphInstantiate");
  }
  ~Graph() {
    if (ready_ != nullptr) cudaGraphExecDestroy(ready_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void run(const Stream& stream) { must(cudaGraphLaunch(ready_, stream.get()), "cudaGraphLaunch"); }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t ready_ = nullptr;
};

}  // namespace

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(error) + " (" +
                           cudaGetErrorString(error) + ")");
}

void must_launch(const char* words) {
  if (words != nullptr) throw std::runtime_error(words);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

double median_us(const Stream& stream, int repeats, const std::function<void()>& work) {
  Event begin, end;
  std::vector<double> times;
  for (int i = 0; i <= repeats; ++i) {
    begin.record(stream);
    work();
    end.record(stream);
    stream.wait();
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime");
    if (i > 0) times.push_back(ms * 1e3);
  }
  return median(std::move(times));
}

double graph_us(const Stream& stream, double at_least_us, int least, const std::function<void(int)>& launch) {
  const double once = median_us(stream, 2, [&] { launch(0); });
  const int launches =
      std::clamp(static_cast<int>(std::ceil(at_least_us / std::max(once, 1.0))), std::min(least, 400), 400);
  Graph graph(stream, launches, launch);
  return median_us(stream, kGraphRepeats, [&] { graph.run(stream); }) / launches;
}

}  // namespace kvasir::gpu_program
