#include "exec/cuda/cuda_gpu.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "exec/cuda/gemm.h"
#include "exec/cuda/launch.h"
#include "exec/cuda/memory_operations.h"
#include "ops/gpu/layouts.h"

namespace kvasir::cuda {
namespace {

std::string words_of(cudaError_t code) {
  return std::string(cudaGetErrorName(code)) + " (" + cudaGetErrorString(code) + ")";
}

class CudaStream final : public EachKernel<CudaStream, GpuStream> {
 public:
  CudaStream(int device, int multiprocessors, const MemoryOperations& operations)
      : device_(device), multiprocessors_(multiprocessors), operations_(operations) {
    must(cudaSetDevice(device_), "cudaSetDevice");
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~CudaStream() override {
    for (const cudaGraphExec_t graph : graphs_) {
      if (graph != nullptr) cudaGraphExecDestroy(graph);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  const Status& status() const { return status_; }

  void add(const ops::gpu::GemmArgs& args) {
    if (enter()) must(gemm(args, multiprocessors_, /*overlaps=*/true, stream_), "a product");
  }
  template <typename Args>
  void add(const Args& args) {
    if (!enter()) return;
    const char* const wrong = cuda::launch(args, stream_);
    if (wrong != nullptr)
      status_ = error(ErrorCode::kIo, "the GPU failed: a kernel: {}; restart the server", wrong);
  }

  void copy(std::span<const GpuCopy> copies) override {
    if (!enter() || copies.empty()) return;
    to_.clear();
    from_.clear();
    bytes_.clear();
    for (const GpuCopy& c : copies) {
      to_.push_back(c.to);
      from_.push_back(c.from);
      bytes_.push_back(c.bytes);
    }
    cudaMemcpyAttributes in_order{};
    in_order.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    size_t first = 0;
    must(cudaMemcpyBatchAsync(to_.data(), from_.data(), bytes_.data(), to_.size(), &in_order, &first, 1,
                              stream_),
         "cudaMemcpyBatchAsync");
  }

  // By default the device's writes before a mark are seen before it.
  void mark(uint32_t* word, uint32_t value) override {
    if (enter()) must(operations_.write(stream_, reinterpret_cast<CUdeviceptr>(word), value, 0), "a mark");
  }
  // The driver compares modulo 2^32, as has_reached() does.
  void gate(const uint32_t* word, uint32_t value) override {
    if (!enter()) return;
    must(operations_.wait(stream_, reinterpret_cast<CUdeviceptr>(word), value, CU_STREAM_WAIT_VALUE_GEQ),
         "a gate");
  }

  // Only this thread is kept from what a capture does not allow.
  void begin_graph(size_t number) override {
    if (graphs_.size() <= number) graphs_.resize(number + 1);
    at_hand_ = number;
    if (enter()) must(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "a graph's begin");
  }
  bool end_graph() override {
    (void)enter();
    cudaGraph_t kernels = nullptr;
    // After a failure, too: a thread that captures may not free memory.
    must(cudaStreamEndCapture(stream_, &kernels), "a graph's end");
    const bool fits = status_.ok() && take_arguments(graphs_[at_hand_], kernels);
    if (kernels != nullptr) cudaGraphDestroy(kernels);
    if (fits && status_.ok()) must(cudaGraphLaunch(graphs_[at_hand_], stream_), "a graph");
    return fits || !status_.ok();
  }
  bool has_graph(size_t number) const override {
    return number < graphs_.size() && graphs_[number] != nullptr;
  }

  Status wait_for_mark(const uint32_t* word, uint32_t value, const std::atomic<bool>& flag) override {
    constexpr int kLooksBetweenQueries = 1024;
    const auto has_come = [&] {
      const std::atomic_ref<uint32_t> here(*const_cast<uint32_t*>(word));
      return has_reached(here.load(std::memory_order_acquire), value);
    };
    if (!enter()) return status_;
    for (int looks = 1; status_.ok() && !has_come() && !flag.load(std::memory_order_relaxed); ++looks) {
      if (looks % kLooksBetweenQueries != 0) continue;
      const cudaError_t state = cudaStreamQuery(stream_);
      if (state == cudaErrorNotReady) {
        std::this_thread::yield();
      } else if (!has_come()) {
        must(state == cudaSuccess ? cudaErrorUnknown : state, "waiting for a mark");
      }
    }
    return status_;
  }
  Status wait() override {
    if (enter()) must(cudaStreamSynchronize(stream_), "waiting for the GPU");
    return status_;
  }

 private:
  // False: the stream has failed. The device is the calling thread's from here on.
  bool enter() {
    if (status_.ok()) must(cudaSetDevice(device_), "cudaSetDevice");
    return status_.ok();
  }
  void must(cudaError_t code, const char* what) {
    if (code == cudaSuccess || !status_.ok()) return;
    status_ = error(ErrorCode::kIo, "the GPU failed: {}: {}; restart the server", what, words_of(code));
  }
  void must(CUresult code, const char* what) {
    if (code == CUDA_SUCCESS || !status_.ok()) return;
    status_ = error(ErrorCode::kIo, "the GPU failed: {}: result {} of the driver; restart the server", what,
                    static_cast<int>(code));
  }
  // False: they are other kernels, or there is no memory for a graph; and there is none.
  bool take_arguments(cudaGraphExec_t& graph, cudaGraph_t kernels) {
    if (graph == nullptr) {
      const cudaError_t made = cudaGraphInstantiate(&graph, kernels, 0);
      if (made != cudaErrorMemoryAllocation) {
        must(made, "making a graph");
        return true;
      }
      (void)cudaGetLastError();  // else the next call would report it
      graph = nullptr;
      return false;
    }
    cudaGraphExecUpdateResultInfo why{};
    const cudaError_t updated = cudaGraphExecUpdate(graph, kernels, &why);
    if (updated != cudaErrorGraphExecUpdateFailure) {
      must(updated, "changing a graph");
      return true;
    }
    (void)cudaGetLastError();  // else the next call would report it
    must(cudaGraphExecDestroy(graph), "giving up a graph");
    graph = nullptr;
    return false;
  }

  const int device_;
  const int multiprocessors_;
  const MemoryOperations& operations_;
  cudaStream_t stream_ = nullptr;
  Status status_;
  std::vector<cudaGraphExec_t> graphs_;  // by number; null: there is none
  size_t at_hand_ = 0;                   // of the graph that is being made
  std::vector<void*> to_;
  std::vector<const void*> from_;
  std::vector<size_t> bytes_;
};

class CudaGpu final : public Gpu {
 public:
  CudaGpu(int device, std::string name, int multiprocessors)
      : device_(device), name_(std::move(name)), multiprocessors_(multiprocessors) {}
  ~CudaGpu() override {
    KV_CHECK(memory_.empty(), "{} pieces of memory are still allocated", memory_.size());
  }

  bool has_memory_operations() const { return operations_.write != nullptr && operations_.wait != nullptr; }

  std::string name() const override { return name_; }
  Result<Memory> memory() const override {
    size_t free = 0, total = 0;
    cudaError_t code = cudaSetDevice(device_);
    if (code == cudaSuccess) code = cudaMemGetInfo(&free, &total);
    if (code != cudaSuccess) {
      return error(ErrorCode::kIo, "the GPU does not say how much memory it has: {}", words_of(code));
    }
    return Memory{free, total};
  }
  std::vector<ProductCase> product_cases() const override {
    std::vector<ProductCase> cases;
    const std::vector<ProductKernel>& kernels = product_kernels();
    for (size_t i = 0; i < kernels.size(); ++i) {
      const auto tile = static_cast<int32_t>(i) + 1;
      if (kernels[i].rows == 0) {
        const WideTileShape& wide = kernels[i].wide;
        cases.push_back({fmt::format("gemm_wide of {} features x {} rows, clusters of {}", wide.features,
                                     wide.tokens, wide.cluster),
                         tile, wide.tokens + 13, wide.features * wide.cluster});
        continue;
      }
      for (const StreamCase& stream : stream_cases(kernels[i], multiprocessors_)) {
        cases.push_back({fmt::format("gemm_stream of {} rows in {} parts, {} slices at a time",
                                     kernels[i].rows, kernels[i].parts, stream.slices),
                         tile, kernels[i].rows - 3, stream.features});
      }
    }
    return cases;
  }
  Result<std::byte*> allocate(uint64_t bytes) override {
    Node node = make_node(/*on_device=*/true);
    void* memory = nullptr;
    cudaError_t code = cudaSetDevice(device_);
    if (code == cudaSuccess) code = cudaMalloc(&memory, bytes);
    return note(code, memory, bytes, std::move(node));
  }
  Result<std::byte*> allocate_pinned(uint64_t bytes) override {
    Node node = make_node(/*on_device=*/false);
    void* memory = nullptr;
    cudaError_t code = cudaSetDevice(device_);
    if (code == cudaSuccess) code = cudaMallocHost(&memory, bytes);
    return note(code, memory, bytes, std::move(node));
  }
  void release(std::byte* memory) override {
    const std::lock_guard lock(mutex_);
    const auto found = memory_.find(memory);
    KV_CHECK(found != memory_.end(), "nothing is allocated here");
    cudaSetDevice(device_);
    if (found->second) {
      cudaFree(memory);
    } else {
      cudaFreeHost(memory);
    }
    memory_.erase(found);
  }
  Result<std::unique_ptr<GpuStream>> make_stream() override {
    auto stream = std::make_unique<CudaStream>(device_, multiprocessors_, operations_);
    KV_RETURN_IF_ERROR(stream->status());
    return std::unique_ptr<GpuStream>(std::move(stream));
  }
  void open_gate(uint32_t* word, uint32_t value) override {
    std::atomic_ref<uint32_t>(*word).store(value, std::memory_order_seq_cst);
  }

 private:
  using Pieces = std::map<std::byte*, bool>;  // true: of the device
  using Node = Pieces::node_type;

  // Made before the memory, which would be lost if there were no room to note it.
  static Node make_node(bool on_device) {
    Pieces one{{nullptr, on_device}};
    return one.extract(one.begin());
  }
  Result<std::byte*> note(cudaError_t code, void* memory, uint64_t bytes, Node node) {
    if (code != cudaSuccess) {
      (void)cudaGetLastError();  // else the next call would report it
      const bool full = code == cudaErrorMemoryAllocation;
      return error(full ? ErrorCode::kExhausted : ErrorCode::kIo, "no {} bytes of {}: {}", bytes,
                   node.mapped() ? "the GPU's memory" : "pinned memory", words_of(code));
    }
    const std::lock_guard lock(mutex_);
    node.key() = static_cast<std::byte*>(memory);
    memory_.insert(std::move(node));
    return static_cast<std::byte*>(memory);
  }

  const int device_;
  const std::string name_;
  const int multiprocessors_;
  const MemoryOperations operations_;
  std::mutex mutex_;
  Pieces memory_;
};

}  // namespace

void set_environment() {
  // Else a kernel is loaded when it is first launched, which may wait for the device, and that for a gate
  // that the launching thread opens later.
  const char* const loading = getenv("CUDA_MODULE_LOADING");
  if (loading == nullptr || std::string_view(loading) != "EAGER") {
    setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/1);
  }
  // This is CUDA's default, but it is often set to 1. Then a copy for which the host keeps a gate closed
  // could be queued behind that gate.
  const char* const queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (queues == nullptr || std::strtol(queues, nullptr, 10) < kMostStreams) {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", std::to_string(kMostStreams).c_str(), /*overwrite=*/1);
  }
}

Result<std::unique_ptr<Gpu>> open_gpu() {
  set_environment();
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess || count == 0) {
    return error(
        ErrorCode::kUnavailable,
        "there is no GPU that this program can use: {}; it needs an H100 or H200 and a driver for CUDA 13",
        found == cudaSuccess ? "the driver knows none" : words_of(found));
  }
  cudaDeviceProp properties{};
  const cudaError_t read = cudaGetDeviceProperties(&properties, 0);
  if (read != cudaSuccess)
    return error(ErrorCode::kUnavailable, "the GPU does not answer: {}", words_of(read));
  if (properties.major != 9 || properties.minor != 0) {
    return error(ErrorCode::kUnsupported,
                 "the GPU {} has compute capability {}.{}; the kernels are for 9.0 (H100, H200)",
                 properties.name, properties.major, properties.minor);
  }
  auto gpu = std::make_unique<CudaGpu>(0, properties.name, properties.multiProcessorCount);
  if (!gpu->has_memory_operations()) {
    return error(ErrorCode::kUnavailable,
                 "the GPU's driver has no stream memory operations; install one for CUDA 13");
  }
  return std::unique_ptr<Gpu>(std::move(gpu));
}

}  // namespace kvasir::cuda
