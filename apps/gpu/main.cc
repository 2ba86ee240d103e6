// kvasir-gpu: checks, tests and measures what runs on a GPU, without a server.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/gpu/parts.h"

namespace kvasir::gpu_program {
namespace {

struct NamedPart {
  const char* command;  // check, test, or the name that bench takes
  const char* name;
  Part run;
};

constexpr NamedPart kParts[] = {
    {"check", "mma", check_mma},
    {"check", "wgmma-shared", check_wgmma_shared},
    {"check", "wgmma-registers", check_wgmma_registers},
    {"check", "scalar", check_scalar},
    {"test", "test-gemm", test_gemm},
    {"floor", "device", bench_device},
    {"floor", "floor", bench_floor},
    {"link", "link", bench_link},
    {"link", "gates", bench_gates},
    {"gemm", "gemm-stream", bench_gemm_stream},
    {"gemm", "gemm-wide", bench_gemm_wide},
    {"gemm", "gemm-cublaslt", bench_gemm_cublaslt},
    {"leaf", "leaf-decode", bench_leaf},
    {"prefill", "leaf-prefill", bench_prefill},
    {"decode", "decode-products", bench_decode},
    {"decode", "forward-decode", bench_forward_decode},
    {"decode", "steps", bench_steps},
    {"prefill", "forward-prefill", bench_forward_prefill},
};

// In this process. Returns the exit code.
int run_here(const std::string& name, const Options& options, Report& report) {
  for (const NamedPart& part : kParts) {
    if (name != part.name) continue;
    try {
      part.run(options, report);
      return 0;
    } catch (const std::exception& error) {
      report.add({{"part", name}, {"error", error.what()}}, name + ": " + error.what());
      return 1;
    }
  }
  std::fprintf(stderr, "kvasir-gpu: no part is called %s\n", name.c_str());
  return 2;
}

// In a process of its own, ended after `limit_s` seconds.
bool run_apart(const NamedPart& part, const std::vector<std::string>& arguments, int limit_s,
               Report& report) {
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const pid_t child = fork();
  if (child == 0) {
    std::vector<std::string> words = arguments;
    words.insert(words.end(), {"--part", part.name});
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    execv("/proc/self/exe", argv.data());
    _exit(127);
  }
  int status = 0;
  std::string result;
  while (child > 0 && waitpid(child, &status, WNOHANG) == 0) {
    if (seconds() > limit_s) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      result = text_of("ended after its limit of %d s", limit_s);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (child < 0) {
    result = text_of("cannot be started: %s", std::strerror(errno));
  } else if (result.empty() && WIFSIGNALED(status)) {
    result = text_of("ended by signal %d", WTERMSIG(status));
  } else if (result.empty()) {
    result = WEXITSTATUS(status) == 0 ? "ok" : "failed";
  }
  report.add({{"part", part.name}, {"result", result}, {"seconds", seconds()}},
             text_of("%-18s %s, %.1f s", part.name, result.c_str(), seconds()));
  return result == "ok";
}

int run(int argc, char** argv) {
  CLI::App app{"Checks, tests and measures the kernels on a GPU (one of compute capability 9.0)",
               "kvasir-gpu"};
  app.require_subcommand(1);
  app.fallthrough();
  Options options;
  std::string json, part;
  int limit_s = 120;
  bool random_weights = false;
  std::vector<std::string> names;
  app.add_option("--json", json, "Append each result to this file, a line of JSON each");
  app.add_option("--part-limit", limit_s, "Seconds that a part may take")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--part", part, "Only this part, in this process");
  CLI::App* check = app.add_subcommand("check", "Whether the device computes what the numerics promise");
  check->add_option("--cases", options.cases, "Outputs for each form of an instruction")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000}))
      ->capture_default_str();
  CLI::App* test = app.add_subcommand("test", "Kernels against the reference, bit by bit");
  CLI::App* bench = app.add_subcommand("bench", "Times of kernels beside what the device can do");
  bench->add_option("what", names, "floor, link, gemm, leaf, prefill, decode; all of them if none is named")
      ->check(CLI::IsMember({"floor", "link", "gemm", "leaf", "prefill", "decode"}));
  bench->add_option("--shape", options.shape, "The model whose shapes are measured")
      ->check(CLI::IsMember({"llama-3-8b"}))
      ->capture_default_str();
  bench->add_flag("--random-weights", random_weights,
                  "Weights are made on the device (there is no other way yet)");
  bench->add_option("--rows", options.rows, "Rows of gemm (1 2 4 8 16 32 64 128 256 512 1024 4096)")
      ->check(CLI::Range(1, 1 << 16));
  CLI11_PARSE(app, argc, argv);
  if (check->parsed()) names = {"check"};
  if (test->parsed()) names = {"test"};
  if (bench->parsed() && names.empty()) names = {"floor", "link", "gemm", "leaf", "prefill", "decode"};

  Report report(json);
  if (!part.empty()) return run_here(part, options, report);
  bool good = true;
  for (const std::string& name : names) {
    for (const NamedPart& each : kParts) {
      if (name == each.command) good &= run_apart(each, {argv, argv + argc}, limit_s, report);
    }
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace kvasir::gpu_program

int main(int argc, char** argv) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("fma")) {
    std::fputs("kvasir-gpu: this CPU has no FMA, by which results are compared\n", stderr);
    return 2;
  }
#endif
  try {
    return kvasir::gpu_program::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvasir-gpu: %s\n", error.what());
    return 2;
  }
}
