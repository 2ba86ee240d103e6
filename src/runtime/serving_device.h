// What runs the steps and holds the device tier: this machine's CPU, or a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "cache/tiers/memory_link.h"
#include "contract/executor.h"
#include "contract/link.h"
#include "contract/mover.h"
#include "contract/peer_memory.h"
#include "engine/options.h"
#include "exec/cpu/decoder.h"
#include "model/files/model_file.h"
#include "runtime/runtime.h"

namespace kvasir {

// Functions are called in the order of declaration, each once; those that make texts at any time after
// make_executor(). size() and what follows may be called again when no link and no executor is left. Errors
// are one line that names the flag or the file. The model outlives the device; the device outlives the link
// and the executor that use it.
class ServingDevice {
 public:
  virtual ~ServingDevice() = default;

  // Also sets the numerics id, and the rows of a step that there is memory for.
  virtual Status load_weights(const RuntimeOptions& options, const ModelFile& model,
                              EngineOptions& engine) = 0;
  // Sets the bytes of the tiers and the longest request. REQUIRES: engine.cache.geometry is set.
  virtual Status size(const RuntimeOptions& options, EngineOptions& engine) = 0;
  virtual Status map_tiers(const CacheOptions& cache) = 0;

  // What a link moves between: addresses of the host, but where there is a mover.
  virtual std::span<std::byte> device_tier() const = 0;
  virtual std::span<std::byte> host_tier() const = 0;
  virtual Mover* mover() { return nullptr; }
  // Memory that a disk's pieces go through, for the link; empty: the link has its own. REQUIRES: there is a
  // disk tier.
  virtual Result<std::span<std::byte>> disk_buffers(uint64_t bytes) {
    (void)bytes;
    return std::span<std::byte>();
  }

  // peers: null if nothing is borrowed.
  virtual Result<std::unique_ptr<Executor>> make_executor(const RuntimeOptions& options,
                                                          const EngineOptions& engine, const Clock& clock,
                                                          Link* link, PeerMemory* peers) = 0;

  // Why it runs nothing more until the process is restarted; "": it does. Any thread, from make_executor()
  // on; takes no lock.
  virtual std::string failure() const { return ""; }

  // As CostFingerprint has it.
  virtual std::string cost_place(const RuntimeOptions& options) const = 0;

  // For people: "avx2 kernels, 4 threads"; "weights 1 GiB (packed)"; bytes of activations.
  virtual std::string kernels_text(const RuntimeOptions& options) const = 0;
  virtual std::string weights_text() const = 0;
  virtual uint64_t activation_bytes() const = 0;
};

// Whether this build has what `--device` needs. kUnsupported: one line that names the flag.
Status check_build(const RuntimeOptions& options);

// For `--device`. kUnavailable, kUnsupported: there is no such GPU, or this build cannot use one. decoder:
// for a CPU.
Result<std::unique_ptr<ServingDevice>> make_serving_device(const RuntimeOptions& options,
                                                           const Decoder::Options& decoder);

// Of a link with a mover: units that are under way in each direction.
constexpr int kMoverUnits = 2;
// Options of the link between the device's tiers; the caller adds disk and peers.
MemoryLinkOptions link_options(const RuntimeOptions& options, ServingDevice& device);

std::unique_ptr<ServingDevice> make_cpu_device(const Decoder::Options& decoder);
std::unique_ptr<ServingDevice> make_gpu_device(std::unique_ptr<Gpu> gpu);

}  // namespace kvasir
