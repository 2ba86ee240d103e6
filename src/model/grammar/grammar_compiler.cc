#include "model/grammar/grammar_compiler.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/patiently.h"
#include "model/grammar/output_constraint.h"

namespace kvasir {
namespace {

// One text for each grammar.
std::string key_of(const OutputGrammar& grammar) {
  std::string key(1, static_cast<char>('0' + static_cast<int>(grammar.kind)));
  key += grammar.text;
  for (const std::string& choice : grammar.choices) {
    key += std::to_string(choice.size()) + ':' + choice;
  }
  return key;
}

}  // namespace

// A grammar that a thread compiles. Guarded by Shared::mutex, but for `grammar`.
struct GrammarCompiler::Job {
  explicit Job(OutputGrammar g) : grammar(std::move(g)) {}
  const OutputGrammar grammar;
  std::optional<Result<CompiledGrammar>> result;
  pid_t thread = 0;
};

struct GrammarCompiler::Shared {
  Shared(const Tokenizer& t, const Options& o)
      : tokenizer(t), cache_limit(o.cache_bytes), mask_limit(o.mask_time) {}

  // Made when a grammar first needs it: of a large vocabulary it takes half a second. Nothing else that a
  // thread does reads the tokenizer. Throws once the compiler has ended without it.
  const GrammarVocabulary& vocabulary() {
    std::call_once(once, [this] { made.emplace(tokenizer); });
    if (!made) throw std::runtime_error("the server stops");
    return *made;
  }

  // REQUIRES of all that follow: mutex is held.
  const CompiledGrammar* find(const std::string& key) {
    const auto it = cache.find(key);
    if (it == cache.end()) return nullptr;
    recent.splice(recent.begin(), recent, it->second);
    return &it->second->second;
  }
  void insert(const std::string& key, const CompiledGrammar& grammar) {
    if (cache.contains(key)) return;
    recent.emplace_front(key, grammar);
    try {
      cache.emplace(key, recent.begin());
    } catch (const std::bad_alloc&) {
      recent.pop_front();
      throw;
    }
    cached_bytes += size_of(recent.front());
    while (cached_bytes > cache_limit && recent.size() > 1) {
      cached_bytes -= size_of(recent.back());
      cache.erase(recent.back().first);
      recent.pop_back();
    }
  }
  using Entry = std::pair<std::string, CompiledGrammar>;
  static size_t size_of(const Entry& e) { return 2 * e.first.size() + e.second.bytes(); }

  const Tokenizer& tokenizer;
  const size_t cache_limit;
  const Nanos mask_limit;
  std::once_flag once;
  std::optional<GrammarVocabulary> made;
  MaskThread masks, slow_masks;

  std::mutex mutex;
  std::condition_variable changed;  // a job has ended
  // Guarded by mutex.
  std::list<Entry> recent;  // the last one used first
  std::map<std::string, std::list<Entry>::iterator> cache;
  size_t cached_bytes = 0;
  std::map<std::string, std::shared_ptr<Job>> running;
  uint64_t compiled = 0;
  Nanos compile_time = 0;
};

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, const Options& options)
    : options_(options), shared_(std::make_shared<Shared>(tokenizer, options)) {}

GrammarCompiler::~GrammarCompiler() {
  // Not only where the last reference goes: a thread that was given up may have it.
  shared_->masks.queue()->stop();
  shared_->slow_masks.queue()->stop();
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait_for(lock, std::chrono::seconds(2), [this] { return shared_->running.empty(); });
  lock.unlock();
  // The tokenizer may go now: this waits for a thread that reads it, and keeps others from beginning.
  std::call_once(shared_->once, [] {});
}

bool GrammarCompiler::is_cached(const OutputGrammar& grammar) const {
  const std::string key = key_of(grammar);
  const std::lock_guard lock(shared_->mutex);
  return shared_->cache.contains(key);
}

void GrammarCompiler::run(Shared& shared, const std::shared_ptr<Job>& job) {
  const MonotonicClock clock;
  {
    const std::lock_guard lock(shared.mutex);
    job->thread = gettid();
  }
  Nanos begin = clock.now();
  const auto compile = [&]() -> Result<CompiledGrammar> {
    try {
      const GrammarVocabulary& vocabulary = shared.vocabulary();
      begin = clock.now();
      return vocabulary.compile(job->grammar);
    } catch (const std::exception& e) {
      return error(ErrorCode::kExhausted, "it could not be prepared: {}; try again", e.what());
    }
  };
  Result<CompiledGrammar> result = patiently(compile);
  if (result.ok() && result->first_mask_time() > shared.mask_limit) {
    result = patiently([&] {
      return error(ErrorCode::kInvalidArgument,
                   "finding out which tokens may come next takes longer than {} ms, which is the limit",
                   to_millis(shared.mask_limit));
    });
  }
  const std::string key = patiently([&] { return key_of(job->grammar); });
  {
    const std::lock_guard lock(shared.mutex);
    try {
      if (result.ok()) shared.insert(key, *result);
    } catch (const std::bad_alloc&) {
      log_warning("grammar: no memory to keep one that was compiled");
    }
    job->result = std::move(result);
    shared.running.erase(key);
    ++shared.compiled;
    shared.compile_time += clock.now() - begin;
  }
  shared.changed.notify_all();
}

Result<CompiledGrammar> GrammarCompiler::compile(const OutputGrammar& grammar,
                                                 const std::atomic<bool>* abandoned) {
  KV_RETURN_IF_ERROR(check_size(grammar, options_.limits));
  const Tokenizer& tokenizer = shared_->tokenizer;
  if (tokenizer.ends().empty()) {
    return error(ErrorCode::kUnsupported, "the model has no token that ends an output");
  }
  const std::string key = key_of(grammar);
  const MonotonicClock clock;
  const Nanos end = clock.now() + options_.patience;
  std::unique_lock lock(shared_->mutex);
  if (const CompiledGrammar* found = shared_->find(key)) return *found;
  std::shared_ptr<Job> job;
  for (;;) {
    if (!job) {
      const auto same = shared_->running.find(key);
      if (same != shared_->running.end()) job = same->second;
    }
    if (!job && shared_->running.size() < options_.threads) {
      job = shared_->running.emplace(key, std::make_shared<Job>(grammar)).first->second;
      try {
        std::thread([shared = shared_, job] { run(*shared, job); }).detach();
      } catch (const std::system_error& e) {
        shared_->running.erase(key);
        return error(ErrorCode::kExhausted, "no thread can be had to prepare it: {}; try again", e.what());
      }
    }
    if (job && job->result) return *job->result;
    if (abandoned != nullptr && abandoned->load(std::memory_order_relaxed)) {
      return error(ErrorCode::kUnavailable, "the client has left");
    }
    if (clock.now() >= end) break;
    shared_->changed.wait_for(
        lock, std::chrono::nanoseconds(std::min<Nanos>(end - clock.now(), 50 * kNanosPerMilli)));
  }
  if (!job) {
    return error(ErrorCode::kExhausted, "{} other grammars are being prepared; try again", options_.threads);
  }
  constexpr int kLeastPriority = 19;
  if (job->thread != 0) setpriority(PRIO_PROCESS, static_cast<id_t>(job->thread), kLeastPriority);
  return error(ErrorCode::kInvalidArgument, "it takes longer than {} s to prepare, which is the limit",
               to_seconds(options_.patience));
}

std::shared_ptr<TokenConstraint> GrammarCompiler::constrain(const CompiledGrammar& grammar,
                                                            OnGrammarFault on_fault) const {
  return std::make_shared<OutputConstraint>(grammar, shared_->masks.queue(), shared_->slow_masks.queue(),
                                            std::move(on_fault));
}

GrammarCompiler::Stats GrammarCompiler::stats() const {
  Stats out;
  {
    const std::lock_guard lock(shared_->mutex);
    out.compiled = shared_->compiled;
    out.compile_seconds = to_seconds(shared_->compile_time);
    out.cache_bytes = shared_->cached_bytes;
  }
  const MaskQueue::Counts& counts = shared_->masks.queue()->counts;  // of both threads
  out.masks = counts.masks.load(std::memory_order_relaxed);
  out.mask_seconds = to_seconds(static_cast<Nanos>(counts.nanos.load(std::memory_order_relaxed)));
  out.masks_asked = counts.asked.load(std::memory_order_relaxed);
  out.masks_awaited = counts.awaited.load(std::memory_order_relaxed);
  out.masks_late = counts.late.load(std::memory_order_relaxed);
  return out;
}

}  // namespace kvasir
