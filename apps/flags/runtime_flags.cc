// The flags that describe how a model runs.
#include "apps/flags/runtime_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "apps/flags/command_line.h"
#include "base/log.h"
#include "base/units.h"
#include "model/quantize/recipe.h"
#include "sched/registry.h"

namespace kvasir {
namespace {

void add_bytes(CLI::App& app, const char* flag, uint64_t& bytes, const char* help) {
  app.add_option_function<std::string>(
         flag,
         [&bytes, flag](const std::string& text) {
           const Result<uint64_t> parsed = parse_bytes(text);
           if (!parsed.ok()) throw CLI::ValidationError(flag, parsed.status().message());
           bytes = *parsed;
         },
         help)
      ->type_name("BYTES");
}

void add_tier_flags(CLI::App& app, RuntimeOptions& o) {
  add_bytes(
      app, "--kv-cache-memory-bytes", o.kv_cache_memory_bytes,
      "Memory for keys and values, as 1536, 512MiB or 1.5GiB (default: half of what is available once the "
      "model is loaded; of a GPU's, see --gpu-memory-utilization)");
  add_bytes(app, "--kv-stage-ring-size", o.stage_ring_bytes,
            "The part of that memory for the stage ring: scratch for keys and values that each step reads "
            "from another tier or recomputes (default: what the policy and the tiers need)");
  add_gib(app, "--kv-offloading-size", o.kv_offloading_bytes,
          "Memory of the host tier, for keys and values that do not fit in the first, in GiB, as 4 or 0.5, "
          "or with a suffix, as 512MiB (default: 0, none)");
  app.add_option("--kv-offloading-dir", o.kv_offloading_dir,
                 "Directory for the file of the disk tier, which keeps prefixes across restarts of the "
                 "server (default: none)")
      ->type_name(kFolderType);
  add_gib(app, "--kv-offloading-disk-size", o.kv_offloading_disk_bytes,
          "Size of the disk tier, in GiB, as 100 or 0.5, or with a suffix (default: 0, none)");
  app.add_option(
         "--link-gbytes-per-s", o.link_gbytes_per_s,
         "Emulate a link of so many GB/s between device and host (default: 0, as fast as the machine)")
      ->type_name("GB/S")
      ->check(between(0.0, 1e6));
}

}  // namespace

void add_gib(CLI::App& app, const char* flag, uint64_t& bytes, const char* help) {
  app.add_option_function<std::string>(
         flag,
         [&bytes, flag](const std::string& text) {
           Result<uint64_t> parsed = parse_bytes(text + "GiB");
           if (!parsed.ok()) parsed = parse_bytes(text);
           if (!parsed.ok()) {
             throw CLI::ValidationError(
                 flag, fmt::format("'{}' is not a size: write GiB, such as 4 or 0.5, or 512MiB", text));
           }
           bytes = *parsed;
         },
         help)
      ->type_name("GIB");
}

void add_cache_flags(CLI::App& app, RuntimeOptions& o) {
  add_tier_flags(app, o);
  app.add_option(
         "--kv-cache-dtype", o.kv_cache_dtype,
         "How keys and values are stored: bf16, f32, or q8_0 (int8, one scale per token, head and plane)")
      ->capture_default_str()
      ->check(suggests({"bf16", "f32", "q8_0"}));
  app.add_option("--block-size", o.block_size, "Tokens of a KV block")
      ->capture_default_str()
      ->check(suggests({"16", "32", "64", "128", "256"}));
  app.add_option("--kv-layer-group", o.kv_layer_group,
                 "Layers that share a frame of the cache (default: 1 with a host or disk tier, else all)");
  app.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", o.enable_prefix_caching,
               "Share the keys and values of equal prefixes between requests (default: on)");
}

void add_batch_flags(CLI::App& app, RuntimeOptions& o) {
  app.add_option("-c,--max-model-len,--ctx-size", o.max_model_len,
                 "Longest prompt and output of one request, in tokens (default: what model and cache allow)");
  app.add_option("--max-num-seqs", o.max_num_seqs, "Most requests that run at once")->capture_default_str();
  app.add_option("--max-num-batched-tokens", o.max_num_batched_tokens,
                 "Most tokens of one step (default: 512, or 2048 if the policy takes whole prompts)");
  app.add_option("--long-prefill-token-threshold", o.long_prefill_token_threshold,
                 "Most tokens of one prompt in one step (default: no bound of its own)");
  app.add_option("--max-decode-stall-ms", o.max_decode_stall_ms,
                 "Most milliseconds that a step delays running decodes for the transfers of other requests "
                 "or for a long prompt (now and then one sequence has a step alone); 0: no bound")
      ->capture_default_str()
      ->check(between(0.0, 86400e3));
  app.add_option("--max-num-queued-reqs", o.max_num_queued_reqs,
                 "Most requests that wait; further ones are refused with 503")
      ->capture_default_str();
  app.add_flag("--refuse-late,!--no-refuse-late", o.refuse_late,
               "Refuse with 503 a request that at the queue's present pace would wait for more than a "
               "quarter of its TTFT bound (default: off)");
  app.add_option("--max-num-queued-tokens", o.max_num_queued_tokens,
                 "Most prompt tokens that wait (default: no bound)");
}

void add_policy_flag(CLI::App& app, std::string& policy) {
  app.add_option(
         "--scheduling-policy", policy,
         "What runs next; a policy's own settings follow its name, as NAME:KEY=VALUE. auto: as many "
         "requests as possible meet their bounds, those without bounds end early on average, and none "
         "starves; it doesn't keep the order of arrival, as sarathi does")
      ->capture_default_str()
      ->check(suggests(policy_names()));
}

void add_model_flag(CLI::App& app, std::string& path) {
  app.add_option("model,-m,--model", path, "The model: a GGUF file, or a folder of Hugging Face")
      ->type_name(kPathType)
      ->required();
}

void add_pinning_flag(CLI::App& app, Pinning& pinning) {
  app.add_option_function<std::string>(
         "--pin-threads",
         [&pinning](const std::string& text) {
           pinning = text == "on" ? Pinning::kOn : text == "off" ? Pinning::kOff : Pinning::kAuto;
         },
         "Keep each compute thread on a core: auto (if there are more than two cores and the threads take "
         "all or all but one), on, off")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->default_str("auto");
}

void add_device_flags(CLI::App& app, RuntimeOptions& o) {
  app.add_option(
         "--device", o.device,
         "What computes: cpu, or cuda, the first GPU (an H100 or H200; CUDA_VISIBLE_DEVICES says which "
         "is the first), in a build with CUDA. Not run on hardware yet")
      ->capture_default_str()
      ->check(suggests({"cpu", "cuda"}));
  app.add_option(
         "--gpu-memory-utilization", o.gpu_memory_utilization,
         "With --device cuda, share of the GPU's memory for weights, activations, and keys and values; "
         "--kv-cache-memory-bytes takes the place of the last part")
      ->default_str(fmt::format("{}", kDefaultGpuShare))
      ->check(between(0.01, 1.0));
  app.add_flag(
      "--enforce-eager,!--no-enforce-eager", o.enforce_eager,
      "With --device cuda, queue each kernel by itself; --no-enforce-eager queues the layers of steps "
      "of up to 64 rows without transfers as CUDA graphs, with the same results (default: "
      "--enforce-eager; graphs have not been measured on hardware)");
}

void add_runtime_flags(CLI::App& app, RuntimeOptions& o) {
  add_model_flag(app, o.model_path);
  add_device_flags(app, o);
  app.add_option("-t,--threads", o.threads,
                 "Compute threads of --device cpu (default, as 0: one per core, except that with more than "
                 "two cores one is "
                 "left to the server)")
      ->check(between(0, 4096));
  app.add_option(
         "--quantization", o.quantization,
         "Quantise a model of F32, F16 or BF16 while it is loaded, as `kvasir convert` would (default: "
         "use the weights as they are stored)")
      ->type_name("TYPE")
      ->check(CLI::IsMember(recipe_names()));
  add_pinning_flag(app, o.pinning);
  add_cache_flags(app, o);
  add_batch_flags(app, o);
  add_policy_flag(app, o.scheduling_policy);
  app.add_option("--activation-type", o.activation_type,
                 "Type of the rows in matrix products. auto: int8 for quantised weights, bf16 for BF16 ones; "
                 "f32: f32 throughout")
      ->capture_default_str()
      ->check(suggests({"auto", "f32"}));
  app.add_option("--chat-template", o.chat_template_path,
                 "File with a Jinja chat template (default: the model's own)")
      ->type_name(kFileType);
  app.add_option("--log-plans", o.log_plans, "File that gets one line of JSON per step (default: none)")
      ->type_name(kFileType);
}

void add_length_predictor_flag(CLI::App& app, std::string& predictor) {
  app.add_option(
         "--length-predictor", predictor,
         "How output lengths are predicted: online (learns from requests that end), hidden (also "
         "reads the model's hidden row of the prompt; see train-predictor), constant:N tokens, or "
         "oracle (takes the length that the request states). For experiments, the stated length made "
         "worse: laplace:N (a mean error of N tokens; laplace:N:SHARE also tells its direction, rightly for "
         "that share), bucket:N (rounded up to a multiple of N), inverted:N (N less the length)")
      ->capture_default_str()
      ->check(suggests({"online", "hidden", "constant:", "oracle", "laplace:", "bucket:", "inverted:"}));
}

void add_belief_flags(CLI::App& app, BeliefOptions& o) {
  o.used = true;
  app.add_option("--cost-profile", o.cost_profile,
                 "File that `kvasir profile` has written (default: the one of this machine, model and flags, "
                 "if there is one)")
      ->type_name(kFileType);
  add_length_predictor_flag(app, o.length_predictor);
  app.add_option("--length-predictor-file", o.length_predictor_file,
                 "File of what the predictor has learnt: read at the start if it exists, and written at the "
                 "end (default: none)")
      ->type_name(kFileType);
}

void add_environment(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const auto& names = option->get_lnames();
    if (names.empty() || names.front() == "help") continue;
    std::string variable = "KVASIR_";
    for (const char c : names.front()) {
      variable += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    }
    // Kubernetes sets NAME_PORT=tcp://… for a service called NAME, which is no port of ours.
    const char* value = std::getenv(variable.c_str());
    if (value != nullptr && std::string_view(value).starts_with("tcp://")) continue;
    option->envname(variable);
  }
}

int report_failure(const char* subcommand, const std::string& message) {
  const std::string said = fmt::format("kvasir {}: {}", subcommand, message);
  if (log_format() == LogFormat::kJson) {
    log_line(LogLevel::kError, said);
  } else {
    fmt::print(stderr, "{}\n", said);
  }
  return 1;
}

}  // namespace kvasir
