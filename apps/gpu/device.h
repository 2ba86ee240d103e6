// Owners of what CUDA hands out, and times taken on the device. Every failed call throws std::runtime_error.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace kvasir::gpu_program {

// Throws with `what` and CUDA's own words unless it succeeded.
void must(cudaError_t error, const char* what);

// The same for what cuda::launch() gives: words, or null.
void must_launch(const char* words);

// Device memory of `count` values.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) { must(cudaMalloc(&data_, bytes()), "cudaMalloc"); }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  DeviceArray& operator=(DeviceArray&&) = delete;
  T* data() const { return static_cast<T*>(data_); }
  size_t count() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }
  void put(const T* from) {
    must(cudaMemcpy(data_, from, bytes(), cudaMemcpyHostToDevice), "copy to the device");
  }
  std::vector<T> get() const {
    std::vector<T> to(count_);
    must(cudaMemcpy(to.data(), data_, bytes(), cudaMemcpyDeviceToHost), "copy from the device");
    return to;
  }
  // Sets every byte to 0xFF, which no kernel writes: it is not a number.
  void poison() { must(cudaMemset(data_, 0xFF, bytes()), "cudaMemset"); }

 private:
  void* data_ = nullptr;
  size_t count_;
};

// Some values on the device; room for one if there are none.
template <typename T>
DeviceArray<T> on_device(const std::vector<T>& values) {
  DeviceArray<T> array(std::max<size_t>(1, values.size()));
  if (!values.empty()) {
    must(cudaMemcpy(array.data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
         "copy to the device");
  }
  return array;
}

// Pinned memory of the host.
template <typename T>
class PinnedArray {
 public:
  explicit PinnedArray(size_t count) { must(cudaMallocHost(&data_, count * sizeof(T)), "cudaMallocHost"); }
  ~PinnedArray() { cudaFreeHost(data_); }
  PinnedArray(const PinnedArray&) = delete;
  PinnedArray& operator=(const PinnedArray&) = delete;
  T* data() const { return static_cast<T*>(data_); }

 private:
  void* data_ = nullptr;
};

class Stream {
 public:
  Stream() { must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  void wait() const { must(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { must(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }
  void record(const Stream& stream) { must(cudaEventRecord(event_, stream.get()), "cudaEventRecord"); }

 private:
  cudaEvent_t event_ = nullptr;
};

double median(std::vector<double> values);

// Microseconds on the device of what `work` queues: the median of `repeats` after one that does not count.
double median_us(const Stream& stream, int repeats, const std::function<void()>& work);

// Microseconds of one of many launches that follow each other in a CUDA graph. launch(i) queues the i-th;
// there are enough to take `at_least_us`, at least `least` and at most 400.
double graph_us(const Stream& stream, double at_least_us, int least, const std::function<void(int)>& launch);

}  // namespace kvasir::gpu_program
