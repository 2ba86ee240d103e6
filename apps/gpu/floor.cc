// What the device can do at best: memory, launches.
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/gpu/device.h"
#include "apps/gpu/floors.h"
#include "apps/gpu/parts.h"
#include "exec/cuda/probe.h"

namespace kvasir::gpu_program {
namespace {

constexpr size_t kFloorBytes = size_t{4} << 30;
constexpr int kFloorRepeats = 7;

void add_bandwidth(Report& report, const std::string& name, double bytes, double us) {
  report.add({{"part", "floor"}, {"what", name}, {"bytes", bytes}, {"us", us}, {"gb_s", bytes / us / 1e3}},
             text_of("%-36s %9.1f GB/s", name.c_str(), bytes / us / 1e3));
}

void add_time(Report& report, const std::string& name, double us) {
  report.add({{"part", "floor"}, {"what", name}, {"us", us}}, text_of("%-36s %9.2f us", name.c_str(), us));
}

double host_us(int count, const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / count;
}

void launches(Report& report) {
  const Stream stream;
  const auto nothing = [&] { must(cuda::do_nothing(stream.get()), "empty kernel"); };
  const auto many = [&] {
    for (int i = 0; i < 1000; ++i) nothing();
  };
  add_time(report, "launches in a stream, each", median_us(stream, 5, many) / 1000);
  stream.wait();
  add_time(report, "a launch, on the host", host_us(500, nothing));
  stream.wait();
  add_time(report, "launches in a graph, each", graph_us(stream, 1e6, 400, [&](int) { nothing(); }));
  add_time(report, "launch and wait, on the host", host_us(200, [&] {
             nothing();
             stream.wait();
           }));
}

}  // namespace

int multiprocessors() {
  int count = 0;
  must(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
  return count;
}

double read_floor_gb_s() {
  const Stream stream;
  DeviceArray<uint8_t> memory(kFloorBytes / 2);
  DeviceArray<uint32_t> sink(1);
  const int sms = multiprocessors();
  const double loads = median_us(stream, kFloorRepeats, [&] {
    must(cuda::read_by_loads(memory.data(), memory.bytes(), sink.data(), sms, stream.get()), "read_by_loads");
  });
  const double bulk = median_us(stream, kFloorRepeats, [&] {
    must(cuda::read_by_bulk(memory.data(), memory.bytes(), 1, 16, sms, stream.get()), "read_by_bulk");
  });
  return static_cast<double>(memory.bytes()) / std::min(loads, bulk) / 1e3;
}

void bench_device(const Options&, Report& report) {
  cudaDeviceProp properties{};
  int driver = 0, runtime = 0;
  must(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  must(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  must(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  report.add(
      {{"part", "device"},
       {"name", properties.name},
       {"compute_capability", properties.major * 10 + properties.minor},
       {"multiprocessors", properties.multiProcessorCount},
       {"memory_bytes", properties.totalGlobalMem},
       {"l2_bytes", properties.l2CacheSize},
       {"shared_bytes", properties.sharedMemPerBlockOptin},
       {"copy_engines", properties.asyncEngineCount},
       {"driver", driver},
       {"runtime", runtime},
       {"host_cores", std::thread::hardware_concurrency()}},
      text_of(
          "%s, compute capability %d.%d, %d multiprocessors, %.1f GiB, L2 %.0f MiB, %d copy engines, CUDA %d",
          properties.name, properties.major, properties.minor, properties.multiProcessorCount,
          static_cast<double>(properties.totalGlobalMem) / (1 << 30),
          static_cast<double>(properties.l2CacheSize) / (1 << 20), properties.asyncEngineCount, driver));
}

void bench_floor(const Options&, Report& report) {
  const Stream stream;
  const int sms = multiprocessors();
  const double bytes = kFloorBytes;
  DeviceArray<uint8_t> from(kFloorBytes), to(kFloorBytes);
  DeviceArray<uint32_t> sink(1);
  must(cuda::write_by_stores(from.data(), kFloorBytes, 0x3F81BF42, sms, stream.get()), "write_by_stores");
  add_bandwidth(report, "read, loads", bytes, median_us(stream, kFloorRepeats, [&] {
                  must(cuda::read_by_loads(from.data(), kFloorBytes, sink.data(), sms, stream.get()),
                       "read_by_loads");
                }));
  for (const int in_flight : {2, 3, 4, 5, 6, 8, 12, 16, 24}) {
    add_bandwidth(report, text_of("read, bulk copies, %d KiB in flight", in_flight * 8), bytes,
                  median_us(stream, kFloorRepeats, [&] {
                    must(cuda::read_by_bulk(from.data(), kFloorBytes, 1, in_flight, sms, stream.get()),
                         "read_by_bulk");
                  }));
  }
  // What the L2 holds: 16 MiB over and over.
  constexpr size_t kCached = size_t{16} << 20;
  constexpr int kTimes = 64;
  add_bandwidth(report, "read of L2, bulk copies", static_cast<double>(kCached * kTimes),
                median_us(stream, kFloorRepeats, [&] {
                  must(cuda::read_by_bulk(from.data(), kCached, kTimes, 16, sms, stream.get()),
                       "read_by_bulk");
                }));
  add_bandwidth(report, "write, stores", bytes, median_us(stream, kFloorRepeats, [&] {
                  must(cuda::write_by_stores(to.data(), kFloorBytes, 7, sms, stream.get()),
                       "write_by_stores");
                }));
  add_bandwidth(report, "write, cudaMemsetAsync", bytes, median_us(stream, kFloorRepeats, [&] {
                  must(cudaMemsetAsync(to.data(), 1, kFloorBytes, stream.get()), "cudaMemsetAsync");
                }));
  add_bandwidth(report, "copy, loads (read and written)", 2 * bytes, median_us(stream, kFloorRepeats, [&] {
                  must(cuda::copy_by_loads(to.data(), from.data(), kFloorBytes, sms, stream.get()),
                       "copy_by_loads");
                }));
  add_bandwidth(
      report, "copy, cudaMemcpyAsync", 2 * bytes, median_us(stream, kFloorRepeats, [&] {
        must(cudaMemcpyAsync(to.data(), from.data(), kFloorBytes, cudaMemcpyDeviceToDevice, stream.get()),
             "cudaMemcpyAsync");
      }));
  launches(report);
}

}  // namespace kvasir::gpu_program
