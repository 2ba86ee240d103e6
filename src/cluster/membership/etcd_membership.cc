#include "cluster/membership/etcd_membership.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "cluster/membership/member_json.h"

namespace kvasir {
namespace {

// Between tries while the directory does not answer, or a watch has ended.
constexpr Nanos kRetry = 200 * kNanosPerMilli;
constexpr int64_t kMinTtlS = 2;
constexpr int64_t kMaxTtlS = 600;
// etcd looks for leases that have ended twice a second.
constexpr Nanos kExpirySlack = 2 * kNanosPerSecond;

constexpr char kTakenForDead[] = "the cluster holds this instance for dead";

Nanos call_timeout_of(const EtcdMembershipSettings& s) {
  if (s.call_timeout > 0) return s.call_timeout;
  return std::max(kNanosPerSecond / 2, s.ttl_s * kNanosPerSecond / 5);
}

}  // namespace

EtcdMembership::EtcdMembership(EtcdMembershipSettings settings)
    : settings_(std::move(settings)),
      call_timeout_(call_timeout_of(settings_)),
      keys_(settings_.address.cluster),
      client_(settings_.address.endpoints, call_timeout_, settings_.tls) {}

EtcdMembership::~EtcdMembership() {
  leave();
}

Result<uint64_t> EtcdMembership::join(const Member& member) {
  if (!is_cluster_name(member.id.instance)) {
    return error(ErrorCode::kInvalidArgument,
                 "an instance cannot be named '{}': take 1 to 64 of a-z 0-9 . _ -", member.id.instance);
  }
  if (settings_.ttl_s < kMinTtlS || settings_.ttl_s > kMaxTtlS) {
    return error(ErrorCode::kInvalidArgument, "a lease of {} s: choose {} to {} s", settings_.ttl_s, kMinTtlS,
                 kMaxTtlS);
  }
  std::string json = member_to_json(member);
  if (json.size() > kMaxMemberJsonBytes) {
    return error(ErrorCode::kInvalidArgument, "what '{}' says of itself has {} bytes: shorten its addresses",
                 member.id.instance, json.size());
  }
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kLeft) {
      return error(ErrorCode::kUnavailable, "'{}' has left the cluster", member.id.instance);
    }
    KV_CHECK(state_ == State::kOut, "joined twice, as {} and {}", self_.instance, member.id.instance);
    state_ = State::kJoining;
    self_ = {member.id.instance, 0};
    view_ = ClusterView(member.id.instance);
  }
  name_ = member.id.instance;
  own_key_ = keys_.member(name_);
  client_.hurry(std::nullopt);
  json_ = std::move(json);
  Status status = begin();
  const auto epoch = static_cast<uint64_t>(lease_);
  if (status.ok()) {
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error& e) {
      status =
          error(ErrorCode::kExhausted, "cannot start the thread of the cluster's membership: {}", e.what());
    }
  }
  if (!status.ok()) depart();
  std::unique_lock lock(mutex_);
  state_ = status.ok() ? State::kIn : State::kOut;
  if (!status.ok()) events_.clear();
  lock.unlock();
  state_changed_.notify_all();
  KV_RETURN_IF_ERROR(status);
  return epoch;
}

void EtcdMembership::leave() {
  std::unique_lock lock(mutex_);
  stop_ = true;
  client_.cancel();
  state_changed_.wait(lock, [this] { return state_ != State::kJoining; });
  const bool was_in = std::exchange(state_, State::kLeft) == State::kIn;
  lock.unlock();
  if (was_in) thread_.join();
}

void EtcdMembership::campaign() {
  const std::lock_guard lock(mutex_);
  campaigning_ = true;
  client_.wake();
}

void EtcdMembership::resign() {
  const std::lock_guard lock(mutex_);
  campaigning_ = false;
  client_.wake();
}

void EtcdMembership::rejoin() {
  gives_up_life_ = true;
  const std::lock_guard lock(mutex_);
  client_.wake();
}

std::vector<MembershipEvent> EtcdMembership::poll() {
  const std::lock_guard lock(mutex_);
  return std::exchange(events_, {});
}

void EtcdMembership::notify(std::function<void()> call) {
  const std::lock_guard lock(mutex_);
  notify_ = std::move(call);
}

std::vector<Member> EtcdMembership::members() const {
  const std::lock_guard lock(mutex_);
  return view_.members();
}

std::optional<Leader> EtcdMembership::leader() const {
  const std::lock_guard lock(mutex_);
  return view_.leader();
}

PeerId EtcdMembership::self() const {
  const std::lock_guard lock(mutex_);
  return self_;
}

std::optional<Nanos> EtcdMembership::down_since() const {
  const std::lock_guard lock(mutex_);
  return down_since_;
}

bool EtcdMembership::stopping() const {
  const std::lock_guard lock(mutex_);
  return stop_;
}

// What join() waits for.
Status EtcdMembership::begin() {
  KV_RETURN_IF_ERROR(wait_for_name());
  KV_RETURN_IF_ERROR(enter());
  KV_RETURN_IF_ERROR(sync());
  return entered_
             ? Status()
             : error(ErrorCode::kUnavailable, "the lease of '{}' ended while it joined: try again", name_);
}

// An instance that was killed and starts again finds its own name: its lease runs out. That of a live one
// does not.
Status EtcdMembership::wait_for_name() {
  std::optional<Nanos> until;
  int64_t holder = 0, left_s = 0;
  for (;;) {
    KV_ASSIGN_OR_RETURN(const EtcdSnapshot found, client_.range(own_key_));
    const auto it = std::find_if(found.entries.begin(), found.entries.end(),
                                 [&](const EtcdKeyValue& entry) { return entry.key == own_key_; });
    if (it == found.entries.end()) return {};
    if (it->lease == 0) {
      return error(ErrorCode::kInvalidArgument, "etcd's key '{}' is in the way of '{}': delete it", own_key_,
                   name_);
    }
    KV_ASSIGN_OR_RETURN(const EtcdLease lease, client_.time_to_live(it->lease));
    const bool renewed = until && it->lease == holder && lease.ttl_s > left_s;
    const bool another = until && it->lease != holder;
    if (!until) until = clock_.now() + std::max<int64_t>(lease.ttl_s, 0) * kNanosPerSecond + kExpirySlack;
    holder = it->lease;
    left_s = lease.ttl_s;
    if (renewed || another || clock_.now() >= *until) {
      const std::optional<Member> member = member_of(keys_, *it);
      return error(
          ErrorCode::kInvalidArgument,
          "the name '{}' is taken by a live instance of the cluster '{}' (at {}): give this one another",
          name_, settings_.address.cluster, member ? member->transport_address : "an unknown address");
    }
    client_.pause(kRetry);
  }
}

// Puts the own key. The same lease is used until that is known to have failed: an answer may have been lost.
Status EtcdMembership::enter() {
  if (lease_ == 0) {
    KV_ASSIGN_OR_RETURN(const EtcdLease lease, client_.grant(settings_.ttl_s));
    lease_ = lease.id;
  }
  const Nanos sent = clock_.now();
  const Result<EtcdTxn> claim = client_.create(own_key_, json_, lease_);
  if (!claim.ok()) {
    if (claim.status().code() != ErrorCode::kNotFound) return claim.status();
    lease_ = 0;
    return error(ErrorCode::kUnavailable, "the lease of '{}' ended before it was used: etcd is too slow",
                 name_);
  }
  if (!claim->done && claim->found.lease != lease_) {
    if (client_.revoke(lease_).ok()) lease_ = 0;
    return error(ErrorCode::kInvalidArgument,
                 "the name '{}' is taken by another instance of the cluster '{}': give this one another",
                 name_, settings_.address.cluster);
  }
  entered_ = true;
  own_revision_ = claim->done ? claim->revision : claim->found.create_revision;
  last_answer_ = clock_.now();
  renew_at_ = sent + settings_.ttl_s * kNanosPerSecond / 3;
  const std::lock_guard lock(mutex_);
  self_.epoch = static_cast<uint64_t>(lease_);
  return {};
}

void EtcdMembership::run() {
  while (!stopping()) {
    try {
      const Status status = round();
      if (status.ok() || stopping()) continue;
      note_down(status);
    } catch (const std::bad_alloc&) {
      // What was to be told may be lost, so this instance begins again.
      gives_up_life_ = true;
    }
    client_.unwatch();
    synced_ = false;
    // The lease may have ended meanwhile: that is asked first. And the directory may have come back from an
    // older copy of its data.
    renew_at_ = 0;
    client_.pause(kRetry);
  }
  depart();
}

Status EtcdMembership::round() {
  if (gives_up_life_.exchange(false) && entered_) lose_epoch("this instance gives up its life");
  if (!entered_ && clock_.now() >= enter_at_) {
    const Status status = enter();
    if (entered_) {
      refused_.clear();
      tell({Rejoined{self()}});
    } else if (status.code() != ErrorCode::kInvalidArgument) {
      return Status(status);
    } else {
      if (status.message() != refused_) log_warning("{}", status.message());
      refused_ = status.message();
      enter_at_ = clock_.now() + settings_.ttl_s * kNanosPerSecond / 3;
    }
  }
  if (entered_ && clock_.now() >= renew_at_) {
    KV_RETURN_IF_ERROR(renew());
    if (!entered_) return {};  // enter first
  }
  if (!synced_) KV_RETURN_IF_ERROR(sync());
  note_up();
  if (entered_) KV_RETURN_IF_ERROR(stand());
  const Nanos next = entered_ ? renew_at_ : enter_at_;
  const Result<std::vector<EtcdEvent>> changes = client_.wait(std::max<Nanos>(0, next - clock_.now()));
  if (changes.ok()) {
    take(*changes);
  } else {
    synced_ = false;
    client_.pause(kRetry);
  }
  return {};
}

Status EtcdMembership::renew() {
  const Nanos sent = clock_.now();
  KV_ASSIGN_OR_RETURN(const EtcdLease lease, client_.keep_alive(lease_));
  last_answer_ = clock_.now();
  if (lease.ttl_s <= 0) {
    lose_epoch(kTakenForDead);
  } else {
    renew_at_ = sent + lease.ttl_s * kNanosPerSecond / 3;
  }
  return {};
}

Status EtcdMembership::sync() {
  KV_ASSIGN_OR_RETURN(const EtcdSnapshot found, client_.range(keys_.followed));
  KV_RETURN_IF_ERROR(client_.watch(keys_.followed, found.revision + 1));
  last_answer_ = clock_.now();
  synced_ = true;
  const bool own = std::any_of(found.entries.begin(), found.entries.end(), [&](const EtcdKeyValue& entry) {
    return entry.key == own_key_ && entry.lease == lease_;
  });
  ClusterContents there = contents_of(keys_, found);
  std::vector<MembershipEvent> events;
  {
    const std::lock_guard lock(mutex_);
    view_.replace(std::move(there.members), there.leader, events);
  }
  tell(std::move(events));
  if (entered_ && !own) lose_epoch(kTakenForDead);
  return {};
}

// Takes the leadership if no instance has it, or gives it back.
Status EtcdMembership::stand() {
  std::unique_lock lock(mutex_);
  const bool wants = campaigning_;
  const PeerId me = self_;
  const std::optional<Leader> known = view_.leader();
  lock.unlock();
  if (!wants && known && known->id == me) {
    return client_.remove(keys_.leader, static_cast<int64_t>(known->term)).status();
  }
  if (!wants || known) return {};
  const Result<EtcdTxn> txn = client_.create(keys_.leader, name_, lease_);
  if (!txn.ok() && txn.status().code() == ErrorCode::kNotFound) {
    renew_at_ = 0;  // the lease has ended: renew() says so
    return {};
  }
  KV_RETURN_IF_ERROR(txn.status());
  const std::optional<Leader> now =
      txn->done ? Leader{me, static_cast<uint64_t>(txn->revision)} : leader_of(keys_, txn->found);
  std::vector<MembershipEvent> events;
  lock.lock();
  if (now) view_.lead(now, events);
  lock.unlock();
  tell(std::move(events));
  return {};
}

void EtcdMembership::take(const std::vector<EtcdEvent>& changes) {
  bool lost = false;
  std::vector<MembershipEvent> events;
  {
    const std::lock_guard lock(mutex_);
    for (const EtcdEvent& change : changes) {
      const EtcdKeyValue& entry = change.entry;
      const std::optional<Leader>& known = view_.leader();
      if (entry.key == keys_.leader) {
        // stand() may know more than the watch has brought.
        if (known && static_cast<uint64_t>(entry.mod_revision) <= known->term) continue;
        view_.lead(change.deleted ? std::nullopt : leader_of(keys_, entry), events);
      } else if (entry.key == own_key_) {
        lost = lost || (change.deleted && entered_ && entry.mod_revision > own_revision_);
      } else if (change.deleted) {
        view_.remove(keys_.instance_of(entry.key), events);
      } else if (std::optional<Member> member = member_of(keys_, entry)) {
        view_.put(std::move(*member), events);
      }
    }
  }
  if (!changes.empty()) last_answer_ = clock_.now();
  tell(std::move(events));
  if (lost) lose_epoch(kTakenForDead);
}

// The others have seen this life end, so that it is none even where its lease goes on.
void EtcdMembership::lose_epoch(const char* why) {
  if (client_.revoke(lease_).ok()) last_answer_ = clock_.now();
  lease_ = 0;
  entered_ = false;
  enter_at_ = 0;
  std::vector<MembershipEvent> events;
  PeerId old;
  {
    const std::lock_guard lock(mutex_);
    old = self_;
    self_.epoch = 0;
    if (view_.leader() && view_.leader()->id == old) view_.lead(std::nullopt, events);
  }
  log_warning("{}: '{}' of epoch {} joins again", why, old.instance, old.epoch);
  events.push_back(EpochLost{std::move(old)});
  tell(std::move(events));
}

void EtcdMembership::depart() {
  client_.resume();
  client_.hurry(2 * call_timeout_);
  client_.unwatch();
  synced_ = false;
  if (lease_ != 0) {
    const Status status = client_.revoke(lease_);
    if (!status.ok()) log_warning("'{}' leaves the cluster in silence: {}", name_, status.message());
  }
  lease_ = 0;
  entered_ = false;
  const std::lock_guard lock(mutex_);
  self_.epoch = 0;
}

void EtcdMembership::note_up() {
  last_answer_ = clock_.now();
  {
    const std::lock_guard lock(mutex_);
    if (!down_since_) return;
    down_since_.reset();
  }
  log_info("etcd answers again");
  tell({DirectoryUp{}});
}

void EtcdMembership::note_down(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    if (down_since_) return;
    down_since_ = last_answer_;
  }
  log_warning("{}", why.message());
  tell({DirectoryDown{last_answer_, why.message()}});
}

void EtcdMembership::tell(std::vector<MembershipEvent> events) {
  if (events.empty()) return;
  std::unique_lock lock(mutex_);
  for (MembershipEvent& event : events) events_.push_back(std::move(event));
  const std::function<void()> call = notify_;
  lock.unlock();
  if (call) call();
}

}  // namespace kvasir
