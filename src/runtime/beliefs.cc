#include "runtime/beliefs.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>

#include "base/file.h"
#include "base/fnv1a.h"
#include "base/log.h"
#include "base/units.h"
#include "sched/beliefs/length_predictors.h"

namespace kvasir {
namespace {

std::string age_of(int64_t measured_at) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t seconds =
      std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::seconds>(now).count() - measured_at);
  if (seconds < 2 * 3600) return count_of(static_cast<uint64_t>(seconds / 60), "minute");
  if (seconds < 2 * 86400) return fmt::format("{} hours", seconds / 3600);
  return fmt::format("{} days", seconds / 86400);
}

// The file's first line. Under another vocabulary its token ids would mean other tokens.
constexpr std::string_view kHead = "kvasir output lengths, vocabulary ";
std::string head_of(const std::string& learnt_of) {
  return fmt::format("{}{}\n", kHead, learnt_of);
}

// "cpu" or "gpu": what CostFingerprint::text begins with.
std::string_view device_of(std::string_view fingerprint) {
  return fingerprint.substr(0, fingerprint.find('='));
}

}  // namespace

std::string vocabulary_id(const Tokenizer& tokenizer) {
  Fnv1a hash;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    hash.add(tokenizer.token_text(id));
    hash.add(uint8_t{0xFF});  // in no text
  }
  return fmt::format("{}-{:016x}", tokenizer.vocab_size(), hash.value());
}

std::string learnt_of(const LengthPredictor& predictor, const Tokenizer& tokenizer,
                      const std::string& model_id) {
  const std::string vocabulary = vocabulary_id(tokenizer);
  return predictor.reads_hidden() ? fmt::format("{}, model {}", vocabulary, model_id) : vocabulary;
}

Result<std::unique_ptr<LengthPredictor>> load_predictor(const BeliefOptions& options,
                                                        const Tokenizer& tokenizer,
                                                        const std::string& model_id) {
  auto made = make_length_predictor(options.length_predictor);
  if (!made.ok()) {
    return error(made.status().code(), "--length-predictor: {}", made.status().message());
  }
  std::unique_ptr<LengthPredictor> predictor = *std::move(made);
  const std::string& path = options.length_predictor_file;
  if (path.empty() || !std::filesystem::exists(path)) return predictor;
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (!in || !(text << in.rdbuf())) {
    return error(ErrorCode::kIo, "--length-predictor-file {}: cannot be read", path);
  }
  const std::string whole = text.str();
  const std::string head = head_of(learnt_of(*predictor, tokenizer, model_id));
  if (whole.starts_with(kHead) && !whole.starts_with(head)) {
    return error(
        ErrorCode::kUnsupported,
        "--length-predictor-file {}: of another model, or of a predictor of another kind; name another file",
        path);
  }
  const Status status = whole.starts_with(head)
                            ? predictor->load(std::string_view(whole).substr(head.size()))
                            : error(ErrorCode::kCorrupt, "not what a server has saved; remove the file");
  if (!status.ok()) return error(status.code(), "--length-predictor-file {}: {}", path, status.message());
  return predictor;
}

Status write_predictor(const LengthPredictor& predictor, const std::string& learnt_of,
                       const std::string& path) {
  const std::string learnt = predictor.save();
  if (learnt.empty()) return {};  // one that keeps nothing
  const std::string text = head_of(learnt_of) + learnt;
  return replace_file(path, std::as_bytes(std::span(text)));
}

void save_predictor(const LengthPredictor& predictor, const std::string& learnt_of, const std::string& path) {
  if (const Status status = write_predictor(predictor, learnt_of, path); !status.ok()) {
    log_warning("what was learnt of output lengths is lost: --length-predictor-file {}", status.message());
  }
}

Result<CostModel> costs_to_begin_with(const BeliefOptions& options, const CostFingerprint& here) {
  const bool named = !options.cost_profile.empty();
  const std::string path = named ? options.cost_profile : default_profile_path(here);
  const auto loaded = load_profile(path);
  if (!loaded.ok()) {
    if (named) return loaded.status();
    if (loaded.status().code() != ErrorCode::kNotFound) {
      // No flag asked for it, so serving goes on without.
      log_warning("{}; costs are learnt from real steps: run `kvasir profile` again",
                  loaded.status().message());
      return CostModel{};
    }
    log_info("no cost profile: costs are learnt from real steps; run `kvasir profile` with these flags");
    return CostModel{};
  }
  // Steps take a hundred times as long on the one as on the other, and plans would be made by that.
  if (named && device_of(loaded->fingerprint) != device_of(here.text)) {
    return error(
        ErrorCode::kInvalidArgument,
        "--cost-profile {}: it was measured on another kind of device: {}; run `kvasir profile` with "
        "these flags, and name what it writes",
        path, loaded->fingerprint.substr(0, loaded->fingerprint.find(" layers=")));
  }
  if (loaded->fingerprint != here.text) {
    log_warning("cost profile {}: of another machine, model or setting; real steps will mend it", path);
    if (!named) return CostModel{};
  }
  log_info("cost profile {}: {} old, fit error {:.1f} % in the mean, {:.1f} % at the worst", path,
           age_of(loaded->measured_at), 100 * loaded->steps.mean, 100 * loaded->steps.worst);
  return loaded->costs;
}

}  // namespace kvasir
