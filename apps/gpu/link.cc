// Host and device: copies between them, marks that the device sets and gates that the host opens.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "apps/gpu/device.h"
#include "apps/gpu/parts.h"
#include "exec/cuda/memory_operations.h"
#include "exec/cuda/probe.h"
#include "exec/gpu/gpu.h"

namespace kvasir::gpu_program {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kLinkBytes = size_t{256} << 20;  // each way
constexpr int kLinkRepeats = 5;
// All are queued before the first gate opens, and a stream takes about a thousand entries.
constexpr uint32_t kRoundTrips = 200;

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

struct Ends {
  uint8_t* host;
  uint8_t* device;
};

// Queues `count` copies of `unit` bytes one after another.
void copy_each(const Ends& ends, bool to_device, size_t unit, size_t count, cudaStream_t stream) {
  for (size_t i = 0; i < count; ++i) {
    uint8_t* host = ends.host + i * unit;
    uint8_t* device = ends.device + i * unit;
    must(cudaMemcpyAsync(to_device ? device : host, to_device ? host : device, unit, cudaMemcpyDefault,
                         stream),
         "cudaMemcpyAsync");
  }
}

// Queues them in batches of at most 16.
void copy_batches(const Ends& ends, bool to_device, size_t unit, size_t count, cudaStream_t stream) {
  constexpr size_t kBatch = 16;
  for (size_t first = 0; first < count; first += kBatch) {
    void* to[kBatch];
    const void* from[kBatch];
    size_t sizes[kBatch];
    const size_t here = std::min(kBatch, count - first);
    for (size_t i = 0; i < here; ++i) {
      uint8_t* host = ends.host + (first + i) * unit;
      uint8_t* device = ends.device + (first + i) * unit;
      to[i] = to_device ? device : host;
      from[i] = to_device ? host : device;
      sizes[i] = unit;
    }
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    size_t begins = 0;
    must(cudaMemcpyBatchAsync(to, from, sizes, here, &attributes, &begins, 1, stream),
         "cudaMemcpyBatchAsync");
  }
}

using Copy = void (*)(const Ends&, bool, size_t, size_t, cudaStream_t);

struct Ways {
  bool to_device;
  bool to_host;
};

// Bytes each way over the time in which all of them ended.
double gb_s(Copy copy, const Ends& down, const Ends& up, const Ways& ways, size_t unit) {
  const size_t bytes = std::min(kLinkBytes, unit * 512), count = bytes / unit;
  const Stream there, back;
  Event begin, back_ended, ended;
  std::vector<double> times;
  for (int i = 0; i <= kLinkRepeats; ++i) {
    begin.record(there);
    must(cudaStreamWaitEvent(back.get(), begin.get(), 0), "cudaStreamWaitEvent");
    // Both ways are queued in turns, so that neither begins long before the other.
    const size_t turn = std::max<size_t>(1, count / 16);
    for (size_t at = 0; at < count; at += turn) {
      const size_t here = std::min(turn, count - at);
      if (ways.to_device)
        copy({down.host + at * unit, down.device + at * unit}, true, unit, here, there.get());
      if (ways.to_host) copy({up.host + at * unit, up.device + at * unit}, false, unit, here, back.get());
    }
    back_ended.record(back);
    must(cudaStreamWaitEvent(there.get(), back_ended.get(), 0), "cudaStreamWaitEvent");
    ended.record(there);
    there.wait();
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin.get(), ended.get()), "cudaEventElapsedTime");
    if (i > 0) times.push_back(ms * 1e3);
  }
  return static_cast<double>(bytes) / median(times) / 1e3;
}

void copies(Report& report) {
  PinnedArray<uint8_t> host_down(kLinkBytes), host_up(kLinkBytes);
  DeviceArray<uint8_t> device_down(kLinkBytes), device_up(kLinkBytes);
  const Ends down{host_down.data(), device_down.data()}, up{host_up.data(), device_up.data()};
  std::fill_n(host_down.data(), kLinkBytes, uint8_t{1});
  std::fill_n(host_up.data(), kLinkBytes, uint8_t{2});
  struct Named {
    const char* name;
    Copy copy;
  };
  struct NamedWays {
    const char* name;
    Ways ways;
  };
  for (const Named& method :
       {Named{"cudaMemcpyAsync", copy_each}, Named{"cudaMemcpyBatchAsync", copy_batches}}) {
    for (size_t unit = size_t{64} << 10; unit <= size_t{64} << 20; unit *= 2) {
      std::string line = text_of("%-22s %6zu KiB", method.name, unit >> 10);
      nlohmann::json fact = {{"part", "link"}, {"method", method.name}, {"unit_bytes", unit}};
      for (const NamedWays& each :
           {NamedWays{"to device", {true, false}}, NamedWays{"to host", {false, true}},
            NamedWays{"both, each", {true, true}}}) {
        const double rate = gb_s(method.copy, down, up, each.ways, unit);
        fact[each.name] = rate;
        line += text_of("   %s %6.2f GB/s", each.name, rate);
      }
      report.add(fact, line);
    }
  }
}

void add_time(Report& report, const char* what, double us) {
  report.add({{"part", "link"}, {"what", what}, {"us", us}}, text_of("%-52s %9.2f us", what, us));
}

// How long the host waits for an event behind the smallest copy.
void events(Report& report) {
  PinnedArray<uint8_t> host(4096);
  DeviceArray<uint8_t> device(4096);
  const Stream stream;
  cudaEvent_t event = nullptr;
  must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  std::vector<double> queued, ended, recorded;
  for (int i = 0; i < 300; ++i) {
    auto begin = Clock::now();
    must(cudaMemcpyAsync(device.data(), host.data(), 4096, cudaMemcpyHostToDevice, stream.get()),
         "cudaMemcpyAsync");
    must(cudaEventRecord(event, stream.get()), "cudaEventRecord");
    queued.push_back(us_since(begin));
    while (cudaEventQuery(event) == cudaErrorNotReady) {
    }
    ended.push_back(us_since(begin));
    begin = Clock::now();
    must(cudaEventRecord(event, stream.get()), "cudaEventRecord");
    while (cudaEventQuery(event) == cudaErrorNotReady) {
    }
    recorded.push_back(us_since(begin));
  }
  must(cudaEventDestroy(event), "cudaEventDestroy");
  add_time(report, "queueing a copy of 4 KiB and an event", median(queued));
  add_time(report, "a copy of 4 KiB to the device, until its event is seen", median(ended));
  add_time(report, "an event alone, until it is seen", median(recorded));
}

// How long it takes to pin memory that the program already has.
void pinning(Report& report) {
  const size_t bytes = size_t{2} << 30;
  for (const bool huge : {false, true}) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("mmap of 2 GiB failed");
    if (huge) madvise(memory, bytes, MADV_HUGEPAGE);
    std::fill_n(static_cast<uint8_t*>(memory), bytes, uint8_t{1});
    const auto begin = Clock::now();
    const cudaError_t error = cudaHostRegister(memory, bytes, cudaHostRegisterDefault);
    const double us = us_since(begin);
    const char* name = huge ? "pinning of huge pages" : "pinning of pages";
    if (error == cudaSuccess) {
      report.add({{"part", "link"}, {"what", name}, {"gb_s", static_cast<double>(bytes) / us / 1e3}},
                 text_of("%-52s %9.2f GB/s", name, static_cast<double>(bytes) / us / 1e3));
      cudaHostUnregister(memory);
    } else {
      report.add({{"part", "link"}, {"what", name}, {"error", cudaGetErrorName(error)}},
                 text_of("%-52s %s", name, cudaGetErrorName(error)));
      cudaGetLastError();
    }
    munmap(memory, bytes);
  }
}

struct Words {
  volatile uint32_t* mark;
  volatile uint32_t* gate;
};

CUdeviceptr address_of(volatile uint32_t* word) {
  return reinterpret_cast<CUdeviceptr>(word);
}
void must_do(CUresult result) {
  if (result != CUDA_SUCCESS) throw std::runtime_error("stream memory operation failed");
}

// The host waits for each mark and opens its gate at once. Microseconds of a round trip, or an exception
// after 10 s.
double round_trip_us(const Words& words, uint32_t count, const std::function<void(uint32_t)>& queue_round,
                     const Stream& stream) {
  *words.mark = 0;
  *words.gate = 0;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::vector<double> times;
  for (uint32_t i = 1; i <= count; ++i) queue_round(i);
  const auto begin = Clock::now();
  auto last = begin;
  for (uint32_t i = 1; i <= count; ++i) {
    while (*words.mark < i) {
      if (us_since(begin) > 10e6) {
        *words.gate = INT32_MAX;
        throw std::runtime_error("no mark from the device within 10 s");
      }
    }
    const auto now = Clock::now();
    times.push_back(std::chrono::duration<double, std::micro>(now - last).count());
    last = now;
    *words.gate = i;
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  stream.wait();
  times.erase(times.begin());
  return median(times);
}

// A thread that queues more than there is room for waits until the device goes on, and so for ever if it is
// the one that opens the gate. How many entries there is room for; queue_next() queues some and returns how
// many.
int room_behind_a_gate(const Words& words, const Stream& stream, const cuda::MemoryOperations& operations,
                       const char* what, const std::function<int()>& queue_next, Report& report) {
  constexpr int kMost = 8192;
  constexpr auto kStandsStill = std::chrono::milliseconds(500);
  *words.gate = 0;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  must_do(operations.wait(stream.get(), address_of(words.gate), 1, CU_STREAM_WAIT_VALUE_GEQ));
  std::atomic<int> queued{0};
  int room = 0;
  std::thread opener([&] {
    int before = -1;
    for (room = 0; room != before; room = queued) {
      before = room;
      std::this_thread::sleep_for(kStandsStill);
    }
    *words.gate = 1;
  });
  try {
    while (queued < kMost) queued += queue_next();
  } catch (...) {
    opener.join();
    throw;
  }
  opener.join();
  stream.wait();
  report.add({{"part", "gates"},
              {"what", std::string("room behind a closed gate: ") + what},
              {"room", room},
              {"most", kMost}},
             text_of("%s%d entries can be queued behind a closed gate: %s", room >= kMost ? "at least " : "",
                     room, what));
  return room;
}

// Empty kernels, batches of copies, and what a layer with transfers has. The executor relies on it that no
// mix has less room than kMostBehindAGate.
void rooms_behind_a_gate(const Words& words, const Stream& stream, const cuda::MemoryOperations& operations,
                         Report& report) {
  constexpr size_t kUnit = 4096, kCopies = 16;
  constexpr int kKernels = 11;
  PinnedArray<uint8_t> host(kUnit * kCopies);
  DeviceArray<uint8_t> device(kUnit * kCopies);
  const Ends ends{host.data(), device.data()};
  const auto kernels = [&](int count) {
    for (int i = 0; i < count; ++i) must(cuda::do_nothing(stream.get()), "empty kernel");
    return count;
  };
  const auto copies_in_one_batch = [&](size_t count) {
    copy_batches(ends, true, kUnit, count, stream.get());
    return static_cast<int>(count);
  };
  const auto mark = [&] {
    must_do(operations.write(stream.get(), address_of(words.mark), 1, 0));
    return 1;
  };
  // It opens with the one before all.
  const auto gate = [&] {
    must_do(operations.wait(stream.get(), address_of(words.gate), 1, CU_STREAM_WAIT_VALUE_GEQ));
    return 1;
  };
  const auto layer = [&] { return kernels(kKernels) + mark() + gate() + copies_in_one_batch(1) + mark(); };
  int least = INT32_MAX;
  const auto measure = [&](const char* what, const std::function<int()>& next) {
    least = std::min(least, room_behind_a_gate(words, stream, operations, what, next, report));
  };
  measure("kernels", [&] { return kernels(1); });
  measure("copies in batches of 16", [&] { return copies_in_one_batch(kCopies); });
  measure("layers of 11 kernels, a gate, a copy and two marks", layer);
  if (least < static_cast<int>(kMostBehindAGate)) {
    throw std::runtime_error(
        text_of("a stream has room for %d entries behind a closed gate: less than the %d "
                "that the executor relies on",
                least, static_cast<int>(kMostBehindAGate)));
  }
}

void gates_by_stream(const Words& words, const Stream& stream, Report& report) {
  const cuda::MemoryOperations operations;
  if (operations.write == nullptr || operations.wait == nullptr) {
    report.add({{"part", "gates"}, {"what", "stream memory operations"}, {"permitted", false}},
               "stream memory operations: the driver has none");
    return;
  }
  // One of each first: the driver refuses here if it does not permit them.
  *words.gate = 1;
  const CUresult wrote = operations.write(stream.get(), address_of(words.mark), 1, 0);
  const CUresult waited = operations.wait(stream.get(), address_of(words.gate), 1, CU_STREAM_WAIT_VALUE_GEQ);
  stream.wait();
  const bool permitted = wrote == CUDA_SUCCESS && waited == CUDA_SUCCESS && *words.mark == 1;
  report.add(
      {{"part", "gates"},
       {"what", "stream memory operations"},
       {"permitted", permitted},
       {"write_result", static_cast<int>(wrote)},
       {"wait_result", static_cast<int>(waited)}},
      text_of("stream memory operations: %s (write %d, wait %d)", permitted ? "permitted" : "not permitted",
              static_cast<int>(wrote), static_cast<int>(waited)));
  if (!permitted) return;
  double queue_us = 0;
  const double us = round_trip_us(
      words, kRoundTrips,
      [&](uint32_t i) {
        const auto begin = Clock::now();
        must_do(operations.write(stream.get(), address_of(words.mark), i, 0));
        must_do(operations.wait(stream.get(), address_of(words.gate), i, CU_STREAM_WAIT_VALUE_GEQ));
        queue_us += us_since(begin) / kRoundTrips;
      },
      stream);
  report.add(
      {{"part", "gates"},
       {"what", "round trip, stream memory operations"},
       {"us", us},
       {"queue_us", queue_us}},
      text_of("mark, host, gate by stream memory operations: %.2f us; queueing both %.2f us", us, queue_us));
  // With a kernel after each gate, as a step has.
  const double with_kernel = round_trip_us(
      words, kRoundTrips,
      [&](uint32_t i) {
        must_do(operations.write(stream.get(), address_of(words.mark), i, 0));
        must_do(operations.wait(stream.get(), address_of(words.gate), i, CU_STREAM_WAIT_VALUE_GEQ));
        must(cuda::do_nothing(stream.get()), "empty kernel");
      },
      stream);
  report.add({{"part", "gates"}, {"what", "round trip with an empty kernel"}, {"us", with_kernel}},
             text_of("the same with an empty kernel behind each gate: %.2f us", with_kernel));
  rooms_behind_a_gate(words, stream, operations, report);
}

void gates_by_kernel(const Words& words, const Stream& stream, Report& report) {
  constexpr uint64_t kLimitNs = 2'000'000'000;
  const double us = round_trip_us(
      words, kRoundTrips,
      [&](uint32_t i) {
        must(cuda::mark_and_wait(const_cast<uint32_t*>(words.mark), const_cast<uint32_t*>(words.gate), i,
                                 kLimitNs, stream.get()),
             "mark_and_wait");
      },
      stream);
  report.add({{"part", "gates"}, {"what", "round trip, kernel of one thread"}, {"us", us}},
             text_of("mark, host, gate by a kernel of one thread: %.2f us", us));
}

}  // namespace

void bench_link(const Options&, Report& report) {
  copies(report);
  events(report);
  pinning(report);
}

void bench_gates(const Options&, Report& report) {
  PinnedArray<uint32_t> words(64);
  std::fill_n(words.data(), 64, 0u);
  const Stream stream;
  const Words pair{words.data(), words.data() + 32};  // in lines of their own
  gates_by_kernel(pair, stream, report);
  gates_by_stream(pair, stream, report);
}

}  // namespace kvasir::gpu_program
