// The command line of `kvasir bench`.
#include "apps/bench/flags.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include "apps/bench/workloads.h"
#include "apps/flags/command_line.h"

namespace kvasir {
namespace {

void add_server_flags(CLI::App& app, BenchOptions& o) {
  app.add_option("--base-url", o.base_url, "The server, by http")->capture_default_str();
  app.add_option("--endpoint", o.endpoint, "What to send requests to")
      ->capture_default_str()
      ->check(suggests({"/v1/completions", "/v1/chat/completions"}));
  app.add_option("-m,--model", o.model, "Model name to ask for (default: the first that /v1/models names)");
  app.add_option("--api-key", o.api_key, "Sent as a bearer token")
      ->type_name(kSecretType)
      ->envname("KVASIR_API_KEY");
  app.add_option("--timeout", o.timeout_s, "Seconds that one request may take")->capture_default_str();
}

// What goes into each request, and how each is sent.
void add_request_flags(CLI::App& app, BenchOptions& o) {
  app.add_option(
         "--num-warmups", o.num_warmups,
         "Requests before the measured ones; random warm-ups have prompts of their own, a file's are its "
         "first lines")
      ->capture_default_str();
  app.add_flag(
      "--force-output-lengths,!--no-force-output-lengths", o.force_output_lengths,
      "Send each output length as forced_output_tokens, which ends the output there without telling the "
      "scheduler, and no max_tokens. Without it: max_tokens, which any server knows");
  app.add_option("--max-tokens", o.max_tokens,
                 "max_tokens of every request, with --force-output-lengths (default: "
                 "none is sent)");
  app.add_flag("--tell-output-lengths,!--no-tell-output-lengths", o.tell_output_lengths,
               "Send each output length as output_tokens_hint, for a server with an oracle");
  app.add_flag("--ignore-eos,!--no-ignore-eos", o.ignore_eos, "Ask the server to generate max_tokens always");
  app.add_option("--temperature", o.temperature, "Sampling temperature")->capture_default_str();
  app.add_option("--extra-body", o.extra_body,
                 R"(Further fields of every request, as a JSON object such as '{"min_p":0.1}')")
      ->type_name(kJsonType);
}

}  // namespace

void add_dataset_flags(CLI::App& app, BenchOptions& o) {
  app.add_option(
         "--dataset-name,--workload", o.dataset_name,
         fmt::format("random; trace: a CSV file of lengths and arrivals; custom: a file of JSON lines; "
                     "or lengths as the papers state theirs: {}. sharegpt may have its file",
                     fmt::join(workload_names(), ", ")))
      ->capture_default_str();
  app.add_option(
         "--dataset-path", o.dataset_path,
         "For custom: one {\"prompt\": ..., \"max_tokens\": N} per line; \"output_tokens\" is another name "
         "for "
         "\"max_tokens\". Sent in the order of the file. For trace: CSV with the columns prompt and output "
         "(tokens) and, if it has them, arrival (seconds) and class. For sharegpt: the JSON list of "
         "conversations; an answer's length is then its words, which is approximate")
      ->type_name(kFileType);
  app.add_option("--num-prompts", o.num_prompts,
                 "Requests to measure (default: 1000, or every line of a custom file or trace); a shorter "
                 "custom file is sent again from its beginning");
  app.add_option(
         "--random-input-len", o.random_input_len,
         "Length of a random prompt in common English words, nearly always one token each; the result "
         "counts the tokens that the server reports")
      ->capture_default_str();
  app.add_option("--random-output-len", o.random_output_len, "max_tokens of a random request")
      ->capture_default_str();
  app.add_option("--random-range-ratio", o.random_range_ratio,
                 "Random lengths are uniform in [len (1 - r), len (1 + r)]; 0 to below 1")
      ->capture_default_str();
  app.add_option("--custom-output-len", o.custom_output_len,
                 "max_tokens for the lines of the file that say none")
      ->capture_default_str();
  app.add_option(
         "--length-scale", o.length_scale,
         "Multiplies the lengths of a workload (without a file) or trace, so that a small machine runs the "
         "same shape")
      ->capture_default_str();
  app.add_option(
         "--shared-prefix-len", o.shared_prefix_len,
         "So many words (tokens) before each prompt that no file holds, which requests share as they share "
         "a system prompt; --num-shared-prefixes says how many there are")
      ->capture_default_str();
  app.add_option("--num-shared-prefixes", o.num_shared_prefixes,
                 "Prefixes of which each request draws one, evenly")
      ->capture_default_str();
  app.add_option("--seed", o.seed, "Of random prompts, lengths and arrival times")->capture_default_str();
  app.add_option(
         "--seeds", o.seeds,
         "Runs at each rate, with --seed, --seed + 1, ...: figures are then means with the 95 % interval of "
         "Student's t")
      ->capture_default_str();
}

void add_arrival_flags(CLI::App& app, BenchOptions& o) {
  app.add_option(
         "--burstiness", o.burstiness,
         "Shape of the gamma distribution of the gaps between arrivals. 1: a Poisson process; below: in "
         "bursts; above: more even")
      ->capture_default_str();
  app.add_option("--arrival-cv", o.arrival_cv,
                 "In place of --burstiness: the coefficient of variation of the gaps; the shape is 1 / CV^2");
}

void add_load_flags(CLI::App& app, BenchOptions& o) {
  app.add_option(
      "--request-rate", o.request_rate,
      "Requests per second: a number, a list as 1,2,4, or ranges first:last:step as 1:8:0.5 with "
      "both ends: a run for each. 0.5x, or 0.5x:1.3x:0.1x: multiples of the capacity, where it is "
      "known. inf: all arrive at once. Otherwise an open loop: arrival times are drawn ahead, and "
      "slow answers do not delay them. A trace's arrivals are stretched to the rate (default: inf, "
      "or the trace's own arrivals)");
  add_arrival_flags(app, o);
  app.add_option("--max-concurrency", o.max_concurrency,
                 "Requests in flight at most; further ones wait, and as in vLLM that wait is in no latency "
                 "(default: no bound)");
  app.add_option(
      "--drain-timeout", o.drain_timeout_s,
      "Seconds after the last arrival when the run ends and what is left counts as unserved (default: none)");
  app.add_option(
         "--trim", o.trim,
         "Share of the requests, by arrival, at the start and again at the end of a run, whose latencies "
         "and attainment are left out, as 0.1: the system fills and empties then. The throughput without as "
         "many of the first and last ends is printed, too")
      ->capture_default_str();
  app.add_flag("--progress,!--no-progress", o.progress,
               "Show how far the run is, on standard error (default: on)");
}

void add_goal_flags(CLI::App& app, BenchOptions& o) {
  app.add_option(
      "--goodput", o.goodput,
      "KEY:MILLISECONDS ..., keys ttft, tpot, p99_tbt, max_tbt (of a request's own gaps between chunks) "
      "and e2el: also report the rate of requests that meet all of them");
  app.add_option(
      "--slo", o.slo,
      "KEY:MILLISECONDS ..., keys ttft, tpot, tbt, e2el: sent to the server with each request as slo, and "
      "counted as attained or not; without --goodput they are its bounds too, tbt as max_tbt");
  app.add_option("--slo-class", o.slo_classes,
                 "NAME:SHARE,KEY:MILLISECONDS,... with --goodput's keys, once for each class: a request has "
                 "the bounds of its class, by its share or by the trace's column class (then no share is "
                 "needed). Sent to the server as slo; and priority:P, if given, as priority");
  app.add_option("--relative-slo", o.relative_slo,
                 "LOW:HIGH: a request's bounds are a draw between them times the reference's mean TTFT (and "
                 "the number of its prompt's chunks), and times its mean TBT, which every gap must meet");
  app.add_option("--slo-reference", o.slo_reference,
                 "ttft:MILLISECONDS,tbt:MILLISECONDS[,chunk:TOKENS]: the means for --relative-slo, and how "
                 "long a chunk is (default: 2048)");
}

void add_result_flags(CLI::App& app, BenchOptions& o) {
  app.add_option("--percentile-metrics", o.percentile_metrics, "What to report, out of ttft, tpot, itl, e2el")
      ->capture_default_str();
  app.add_option("--metric-percentiles", o.metric_percentiles, "Percentiles to report")
      ->capture_default_str();
  add_goal_flags(app, o);
  app.add_flag("--save-result,!--no-save-result", o.save_result, "Write the result as JSON");
  app.add_flag("--save-detailed,!--no-save-detailed", o.save_detailed,
               "With --save-result: also each request's times, lengths, text and error");
  app.add_option("--result-dir", o.result_dir, "Directory of the JSON file (default: the working directory)")
      ->type_name(kFolderType);
  app.add_option("--result-filename", o.result_filename,
                 "Name of the JSON file (default: of the rate, model and date)");
  app.add_option("--label", o.label, "What the system is called in reports; kept in the JSON file");
  app.add_option("--html", o.html, "Write a report with curves, in one file that needs nothing else")
      ->type_name(kFileType);
  app.add_option("--svg", o.svg, "Write each chart of the report as an SVG file into this folder")
      ->type_name(kFolderType);
  app.add_option(
         "--compare", o.compare,
         "Result files of earlier runs: no load is sent, and the report of --html or --svg has them all in "
         "the same pictures")
      ->type_name(kFileType);
}

void add_bench_flags(CLI::App& app, BenchOptions& options) {
  app.footer(
      "Times are measured as vLLM's benchmark does it, from when a request is sent, which includes opening "
      "its connection: TTFT to the first chunk with content, E2EL to the last chunk, ITL between chunks with "
      "content, TPOT = (last chunk - first chunk) / (tokens - 1).");
  add_server_flags(app, options);
  add_dataset_flags(app, options);
  add_load_flags(app, options);
  add_request_flags(app, options);
  add_result_flags(app, options);
}

}  // namespace kvasir
