// Prints what this machine can do, for one thread and for all: the yardstick of every other figure.
//
//   limits [--threads N,N...] [--json FILE]
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "machine_limits.h"

namespace kvasir::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::vector<int> threads;
  std::string json;
};

std::string cpu_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("model name") && line.find(": ") != std::string::npos)
      return line.substr(line.find(": ") + 2);
  }
  return "unknown";
}

void print_row(const std::string& what, const std::string& how, const std::vector<double>& figures,
               const char* unit) {
  fmt::print("{:<24} {:<44}", what, how);
  for (double x : figures) fmt::print(" {:>10.1f}", x);
  fmt::print("  {}\n", unit);
  std::fflush(stdout);
}

void peaks(const Options& o, Json& out) {
  for (const PeakLoop& loop : peak_loops()) {
    const std::string what = fmt::format("{}, {} bits", product_name(loop.product), loop.vector_bits);
    Json entry = {{"product", product_name(loop.product)},
                  {"vector_bits", loop.vector_bits},
                  {"instruction", loop.instruction},
                  {"supported", loop.supported}};
    if (!loop.supported) {
      fmt::print("{:<24} {:<44} this CPU has no {}\n", what, loop.instruction, loop.needs);
    } else {
      std::vector<double> figures;
      for (int threads : o.threads) figures.push_back(measure_peak(loop, threads));
      const bool whole = loop.product == Product::kInt8;
      print_row(what, loop.instruction, figures, whole ? "GOP/s" : "GFLOP/s");
      entry["gop_per_s"] = figures;
    }
    out.push_back(std::move(entry));
  }
}

void bandwidths(const Options& o, Json& out) {
  const size_t bytes = bandwidth_buffer_bytes();
  for (Pages pages : {Pages::kSmall, Pages::kHuge}) {
    std::vector<double> figures;
    std::vector<int> streams;
    double huge_share = 0;
    for (int threads : o.threads) {
      const Bandwidth b = measure_bandwidth(pages, threads, bytes);
      figures.push_back(b.gbytes_per_s);
      streams.push_back(b.streams);
      huge_share = b.huge_share;
    }
    const bool huge = pages == Pages::kHuge;
    const std::string how = fmt::format("{} MiB, {:.0f} % in huge pages", bytes >> 20, 100 * huge_share);
    print_row(huge ? "reading, huge pages" : "reading, small pages", how, figures, "GB/s");
    out.push_back({{"pages", huge ? "huge" : "small"},
                   {"buffer_bytes", bytes},
                   {"huge_share", huge_share},
                   {"streams", streams},
                   {"gbytes_per_s", figures}});
  }
}

int run(Options o) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (o.threads.empty()) {
    o.threads.push_back(1);
    if (cores > 1) o.threads.push_back(cores);
  }
  const std::string cpu = cpu_name();
  fmt::print("{}, {} CPUs. The best of many runs; a product and its addition are two operations.\n\n", cpu,
             cores);
  fmt::print("{:<24} {:<44}", "threads", "");
  for (int threads : o.threads) fmt::print(" {:>10}", threads);
  fmt::print("\n");
  Json result = {{"cpu", cpu}, {"cpus", cores}, {"threads", o.threads}};
  peaks(o, result["peaks"]);
  bandwidths(o, result["bandwidth"]);
  if (o.json.empty()) return 0;
  std::ofstream file(o.json);
  file << result.dump(2) << "\n" << std::flush;
  if (file) return 0;
  fmt::print(stderr, "limits: {}: cannot be written; give --json a path that can\n", o.json);
  return 1;
}

}  // namespace
}  // namespace kvasir::bench

int main(int argc, char** argv) {
  kvasir::bench::Options options;
  CLI::App app("Measures what this machine can do: products in registers, bytes from memory.");
  app.add_option("--threads", options.threads, "Numbers of threads, separated by commas (1 and all)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  app.add_option("--json", options.json, "Also write the figures to this file");
  CLI11_PARSE(app, argc, argv);
  return kvasir::bench::run(std::move(options));
}
