// Round trips between two endpoints: a message there, as long a one back, p50 and p99 in µs.
// Both endpoints are in this process, each with its own threads, as two instances on one machine are.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/check.h"
#include "cluster/transport/grpc_transport.h"

namespace kvasir {
namespace {

using MakeTransport = Result<std::unique_ptr<ClusterTransport>> (*)(TransportOptions);

std::unique_ptr<ClusterTransport> endpoint(MakeTransport make, const PeerId& self) {
  TransportOptions options;
  options.self = self;
  auto made = make(options);
  KV_CHECK(made.ok(), "{}", made.status().message());
  return std::move(made).value();
}

// Looks for a message without sleeping, for `spin`; then sleeps for it.
std::vector<PeerMessage> next_messages(PeerTransport& transport, Nanos spin) {
  const MonotonicClock clock;
  const Nanos until = clock.now() + spin;
  while (clock.now() < until) {
    auto messages = transport.receive();
    if (!messages.empty()) return messages;
    std::this_thread::yield();
  }
  transport.wait(kNanosPerSecond);
  return transport.receive();
}

void round_trip(benchmark::State& state, MakeTransport make, Nanos spin) {
  const PeerId here_id{"here", 1}, there_id{"there", 2};
  const auto here = endpoint(make, here_id);
  const auto there = endpoint(make, there_id);
  here->introduce(there_id, there->address());
  there->introduce(here_id, here->address());
  std::atomic<bool> stop{false};
  std::thread echo([&] {
    while (!stop) {
      for (PeerMessage& message : next_messages(*there, spin)) {
        KV_CHECK(there->send(here_id, std::move(message.bytes)).ok(), "the echo is cut off");
      }
    }
  });
  const MonotonicClock clock;
  std::vector<double> micros;
  std::vector<std::byte> bytes(static_cast<size_t>(state.range(0)));
  for (auto _ : state) {
    const Nanos began = clock.now();
    KV_CHECK(here->send(there_id, std::move(bytes)).ok(), "cut off");
    std::vector<PeerMessage> back;
    while (back.empty()) {
      back = next_messages(*here, spin);
      KV_CHECK(here->lost().empty(), "lost");
    }
    bytes = std::move(back.front().bytes);
    micros.push_back(static_cast<double>(clock.now() - began) / kNanosPerMicro);
  }
  stop = true;
  there->wake();
  echo.join();
  std::sort(micros.begin(), micros.end());
  state.counters["p50_us"] = micros[micros.size() / 2];
  state.counters["p99_us"] = micros[micros.size() * 99 / 100];
}

#define KV_TRANSPORT_SIZES ->Arg(4 << 10)->Arg(64 << 10)->Arg(1 << 20)->UseRealTime()->MeasureProcessCPUTime()
BENCHMARK_CAPTURE(round_trip, grpc, &make_grpc_transport, 0) KV_TRANSPORT_SIZES;
BENCHMARK_CAPTURE(round_trip, grpc_spin, &make_grpc_transport, 100 * kNanosPerMicro) KV_TRANSPORT_SIZES;

}  // namespace
}  // namespace kvasir

BENCHMARK_MAIN();
