// `kvasir bench`: load for any OpenAI-compatible server, and what came of it.
//
// The flags, the printed block and the JSON keys are those of `vllm bench serve`, so that one program
// measures this server and its peers.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <limits>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace kvasir {

// As written on the command line; run_bench checks it.
struct BenchOptions {
  std::string base_url = "http://127.0.0.1:8000";
  std::string model;  // empty: the first that /v1/models names
  std::string endpoint = "/v1/completions";
  std::string api_key;

  std::string dataset_name = "random";  // or a named workload
  std::string dataset_path;
  int64_t num_prompts = 0;          // 0: 1,000 random prompts, or every line of a custom file
  int64_t random_input_len = 1024;  // words, which are near to tokens
  int64_t random_output_len = 128;  // tokens
  double random_range_ratio = 0.0;  // lengths are uniform in [len (1 - r), len (1 + r)]
  int64_t custom_output_len = 256;  // tokens, for the lines that say none

  double length_scale = 1.0;         // of the lengths of workloads and traces
  int64_t shared_prefix_len = 0;     // tokens before each drawn prompt that several requests share
  int64_t num_shared_prefixes = 10;  // of which each request takes one

  std::string request_rate;     // as parse_rates takes it; empty: all at once, or the trace's own arrivals
  double burstiness = 1.0;      // the gamma distribution's shape
  double arrival_cv = 0;        // the coefficient of variation of the gaps; 0: as burstiness says
  int64_t max_concurrency = 0;  // 0: no bound
  int64_t num_warmups = 0;
  double timeout_s = 3600.0;                                         // seconds, for each request
  double drain_timeout_s = std::numeric_limits<double>::infinity();  // seconds after the last arrival
  double trim = 0;  // share of the requests, at the start and again at the end, that is not judged

  bool ignore_eos = false;
  bool force_output_lengths = false;  // by forced_output_tokens, which tells the scheduler nothing
  bool tell_output_lengths = false;   // by output_tokens_hint, which an oracle reads
  int64_t max_tokens = 0;             // sent beside forced lengths; 0: not sent
  double temperature = 0.0;
  std::string extra_body;  // a JSON object
  uint64_t seed = 0;
  int64_t seeds = 1;  // runs at each rate, with seed, seed + 1, ...

  std::string percentile_metrics = "ttft,tpot,itl,e2el";
  std::string metric_percentiles = "50,90,99";
  std::vector<std::string> goodput;      // "ttft:500", milliseconds
  std::vector<std::string> slo;          // likewise, and sent to the server
  std::vector<std::string> slo_classes;  // as parse_slo_classes takes them
  std::string relative_slo;              // "0.5:2.5"
  std::string slo_reference;             // "ttft:500,tbt:40"

  bool save_result = false;
  bool save_detailed = false;
  std::string result_dir;
  std::string result_filename;
  std::string label;                 // what the result is called in a comparison
  std::string html;                  // the report's file
  std::string svg;                   // a folder for the report's charts, each a file
  std::vector<std::string> compare;  // result files to report on, without any load
  bool progress = true;
};

// Registers every flag on `app`, to be written into `options`, which must live as long as `app` parses.
// flags.h has them in parts.
void add_bench_flags(CLI::App& app, BenchOptions& options);

// Runs the load and prints the result. Takes SIGINT and SIGTERM while the load runs: what was measured so far
// is then printed. Returns the process's exit code: 0, or 1 when nothing could be measured (one line on `err`
// says why), or 130 after an interrupt. Blocks until the load has ended; raises the soft limit on open files.
int run_bench(const BenchOptions& options);
// `terminal`: whether `err` is one, and shows a bar that is drawn over.
int run_bench(const BenchOptions& options, std::ostream& out, std::ostream& err, bool terminal = false);

}  // namespace kvasir
