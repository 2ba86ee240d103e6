#include "cluster/node/cluster_node.h"

#include <algorithm>
#include <new>

#include "base/check.h"
#include "base/log.h"
#include "base/patiently.h"
#include "cluster/memory/data_wire.h"
#include "cluster/node/pinned_cells.h"

namespace kvasir::cluster {
namespace {

// A message's last byte: whose it is.
enum class Plane : uint8_t { kControl = 1, kData = 2 };

// The dispatcher looks after deadlines so often, where nothing else wakes it.
constexpr Nanos kDispatchPeriod = 20 * kNanosPerMilli;
// So long after its last turn the engine is in a long step, unless it slept: then it comes soon.
constexpr Nanos kEngineIsBusy = 100 * kNanosPerMilli;
constexpr Nanos kWakesWithin = 50 * kNanosPerMilli;

std::vector<std::byte> tagged(Plane plane, std::vector<std::byte> bytes) {
  bytes.push_back(static_cast<std::byte>(plane));
  return bytes;
}

Status no_member() {
  return error(ErrorCode::kUnavailable, "this instance is no member of its cluster now");
}

}  // namespace

struct ClusterNode::Data {
  Data(ClusterNode& node, const NodeMemory& memory, PeerId id)
      : self(std::move(id)),
        pins(node.mutex_, *node.broker_, self, memory.tiers),
        borrowed(std::make_shared<BorrowedMemory>(options_of(node, memory), self, memory.shape, node.kernels_,
                                                  node.clock_, sender(node))),
        lent(std::make_unique<LentMemory>(memory.lent, self, memory.shape, node.kernels_, pins, node.clock_,
                                          sender(node))) {}

  static BorrowedMemoryOptions options_of(const ClusterNode& node, const NodeMemory& memory) {
    BorrowedMemoryOptions options = memory.borrowed;
    const BrokerOptions& broker = node.options_.broker;
    options.cells = broker.borrowable_cells + broker.attended_cells + broker.prefix_cells;
    return options;
  }
  static SendData sender(ClusterNode& node) {
    return [&transport = *node.transport_](const PeerId& to, std::vector<std::byte> message) {
      return transport.send(to, tagged(Plane::kData, std::move(message)));
    };
  }

  const PeerId self;
  PinnedCells pins;
  const std::shared_ptr<BorrowedMemory> borrowed;
  const std::unique_ptr<LentMemory> lent;
};

// ---------------------------------------------------------------- what is borrowed, in whichever life

std::shared_ptr<BorrowedMemory> ClusterNode::AnyLife::now() const {
  const std::shared_ptr<Data> data = node_.data();
  return data ? data->borrowed : nullptr;
}

void ClusterNode::AnyLife::write(uint64_t at, std::span<const std::byte> from, Done done) {
  const auto memory = now();
  if (!memory) return done(no_member());
  memory->write(at, from, std::move(done));
}

void ClusterNode::AnyLife::read(uint64_t at, std::span<std::byte> to, Done done) {
  const auto memory = now();
  if (!memory) return done(no_member());
  memory->read(at, to, std::move(done));
}

void ClusterNode::AnyLife::attend(const RemoteQuery& query, std::span<float> partials, Done done) {
  const auto memory = now();
  if (!memory) return done(no_member());
  memory->attend(query, partials, std::move(done));
}

std::shared_ptr<BorrowedMemory> ClusterNode::Places::now() const {
  const std::shared_ptr<Data> data = node_.data();
  const ControlPlane* control = node_.broker_->control();
  return data && control && control->post().self() == data->self ? data->borrowed : nullptr;
}

void ClusterNode::Places::map(const ContractRef& contract, uint32_t first_slot, uint32_t first_cell,
                              uint32_t count) {
  if (const auto memory = now()) memory->map(contract.creditor, contract.id, first_slot, first_cell, count);
}

void ClusterNode::Places::unmap(const ContractRef& contract, uint32_t first_slot, uint32_t count) {
  if (const auto memory = now()) memory->unmap(contract.creditor, contract.id, first_slot, count);
}

void ClusterNode::Places::unmap(const ContractRef& contract) {
  if (const auto memory = now()) memory->unmap(contract.creditor, contract.id);
}

Status ClusterNode::ControlChannel::send(const PeerId& to, std::vector<std::byte> bytes) {
  return transport_.send(to, tagged(Plane::kControl, std::move(bytes)));
}

// ---------------------------------------------------------------- begin and end

Result<std::unique_ptr<ClusterNode>> ClusterNode::join(NodeOptions options,
                                                       std::unique_ptr<PeerTransport> transport,
                                                       std::unique_ptr<Membership> membership,
                                                       const ops::Kernels& kernels, const Clock& clock) {
  options.self.transport_address = transport->address();
  std::unique_ptr<ClusterNode> node(
      new ClusterNode(std::move(options), std::move(transport), std::move(membership), kernels, clock));
  node->membership_->notify([n = node.get()] { n->transport_->wake(); });
  const Result<uint64_t> epoch = node->membership_->join(node->options_.self);
  if (!epoch.ok()) return epoch.status();
  if (node->options_.leads) node->membership_->campaign();
  node->begin_life(epoch.value());
  node->inbox_.emplace_back(MembershipEvent(Rejoined{{node->options_.self.id.instance, epoch.value()}}));
  node->dispatcher_ = std::thread([n = node.get()] { n->dispatch(); });
  return node;
}

ClusterNode::ClusterNode(NodeOptions options, std::unique_ptr<PeerTransport> transport,
                         std::unique_ptr<Membership> membership, const ops::Kernels& kernels,
                         const Clock& clock)
    : options_(std::move(options)),
      transport_(std::move(transport)),
      membership_(std::move(membership)),
      kernels_(kernels),
      clock_(clock),
      channel_(*transport_),
      places_(*this),
      memory_(*this),
      broker_(std::in_place, options_.broker, channel_, places_) {}

ClusterNode::~ClusterNode() {
  stopping_ = true;
  transport_->wake();
  if (dispatcher_.joinable()) dispatcher_.join();
  membership_->notify({});
  membership_->leave();
  if (data_) end_life();
}

void ClusterNode::begin_to_leave() {
  leaving_ = true;
  {
    std::lock_guard lock(mutex_);
    if (!broken_) broker_->begin_to_leave();
  }
  membership_->resign();
  due_ = 0;
  transport_->wake();
}

// ---------------------------------------------------------------- lives

std::shared_ptr<ClusterNode::Data> ClusterNode::data() const {
  std::lock_guard lock(data_mutex_);
  return data_;
}

void ClusterNode::begin_life(uint64_t epoch) {
  transport_->begin_life(epoch);
  member_ = true;
  if (!options_.memory) return;
  auto data = std::make_shared<Data>(*this, *options_.memory, PeerId{options_.self.id.instance, epoch});
  std::lock_guard lock(data_mutex_);
  data_ = std::move(data);
}

// From now on nothing is sent or served in this life's name, and what is under way with others' memory fails.
// What it had lent is not read any more when this returns.
void ClusterNode::end_life() {
  std::lock_guard one_at_a_time(ending_mutex_);  // a second caller waits for the first
  member_ = false;
  transport_->begin_life(0);
  std::shared_ptr<Data> data;
  {
    std::lock_guard lock(data_mutex_);
    data.swap(data_);
  }
  if (!data) return;
  data->borrowed->lost_all();
  data->lent->stop();
}

// ---------------------------------------------------------------- the dispatcher's thread

void ClusterNode::dispatch() {
  Nanos wait = 0;
  while (!stopping_) {
    transport_->wait(wait);
    try {
      dispatch_once(wait);
    } catch (const std::bad_alloc&) {
      // Messages and events may be lost, which a new life makes good.
      log_error("there was no memory for a message of the cluster: this instance begins a new life in it");
      patiently([this] {
        end_life();
        membership_->rejoin();
      });
    }
  }
}

void ClusterNode::dispatch_once(Nanos& wait) {
  wait = kDispatchPeriod;
  std::vector<Control> heard;
  for (MembershipEvent& event : membership_->poll()) {
    if (std::holds_alternative<EpochLost>(event)) end_life();
    if (const auto* again = std::get_if<Rejoined>(&event)) begin_life(again->id.epoch);
    heard.emplace_back(std::move(event));
  }
  const std::shared_ptr<Data> data = this->data();
  for (PeerMessage& message : transport_->receive()) route(std::move(message), data, heard);
  for (const PeerId& peer : transport_->lost()) {
    if (data) {
      data->borrowed->lost(peer);
      data->lent->lost(peer);
    }
    heard.emplace_back(PeerDied{peer});
  }
  const Nanos now = clock_.now();
  if (data) wait = std::clamp<Nanos>(data->borrowed->tick() - now, 0, wait);
  bool something = false;
  {
    std::lock_guard lock(data_mutex_);
    for (Control& c : heard) inbox_.push_back(std::move(c));
    something = !inbox_.empty();
  }
  if (!something && now < due_) return;
  // An engine in a long step comes when it has ended: peers are not to take the instance for dead meanwhile.
  const Nanos step = std::min(now - turned_at_, now - woken_at_ + kEngineIsBusy - kWakesWithin);
  if (woken_ && step >= kEngineIsBusy) return act_without_engine();
  std::lock_guard lock(wake_mutex_);
  if (!wake_ || woken_) return;
  woken_at_ = now;
  woken_ = true;
  wake_();
}

void ClusterNode::route(PeerMessage message, const std::shared_ptr<Data>& data, std::vector<Control>& heard) {
  if (message.bytes.empty()) return;
  const auto plane = static_cast<Plane>(message.bytes.back());
  message.bytes.pop_back();
  const std::span<const std::byte> bytes = message.bytes;
  switch (plane) {
    case Plane::kControl:
      heard.emplace_back(std::move(message));
      return;
    case Plane::kData:
      if (!data) return;
      if (is_reply(bytes)) {
        data->borrowed->handle(message.from, bytes);
      } else {
        data->lent->handle(message.from, bytes);
      }
      return;
  }
  log_warning("a message of {} is of no kind that there is", name_of(message.from));
}

void ClusterNode::set_wake(std::function<void()> wake) {
  std::lock_guard lock(wake_mutex_);
  wake_ = std::move(wake);
}

// What needs frames of the engine is refused; what it is to be told waits for its turn.
void ClusterNode::act_without_engine() {
  std::lock_guard lock(mutex_);
  if (broken_) return;
  change_broker([this] {
    broker_->tick(hear_all());
    set_due();
  });
}

template <typename Change>
void ClusterNode::change_broker(const Change& change) {
  try {
    change();
  } catch (const std::bad_alloc&) {
    broken_ = true;
    throw;
  }
}

// ---------------------------------------------------------------- the engine's turn

LendingEvents ClusterNode::turn(const LendingRequest& request, LendableCells& own) {
  woken_ = false;
  turned_at_ = clock_.now();
  std::lock_guard lock(mutex_);
  if (broken_) throw std::bad_alloc();
  LendingEvents events;
  change_broker([&] {
    broker_->begin_turn(own);
    const Nanos now = hear_all();
    events = broker_->end_turn(request, now);
    events.lendable = lendable_;
    price(events);
    set_due();
  });
  gone_ = broker_->gone();
  return events;
}

// What it would cost to attend to the prefixes that peers have.
void ClusterNode::price(LendingEvents& events) const {
  const std::shared_ptr<Data> data = this->data();
  const ControlPlane* control = broker_->control();
  if (!data || !control || !options_.memory) return;
  const MemoryShape& shape = options_.memory->shape;
  for (PrefixAnswer& answer : events.prefixes_found) {
    const std::optional<PeerId> peer = control->post().current(answer.peer);
    if (answer.cells.empty() || !peer) continue;
    const auto leaves =
        static_cast<uint32_t>(answer.cells.size() / shape.geometry.groups() / shape.blocks_per_leaf());
    const std::optional<PeerCost> cost = data->borrowed->believed_cost(*peer);
    if (cost && leaves > 0) answer.attending = attending_cost(shape, leaves, *cost);
  }
}

void ClusterNode::start_anew() {
  end_life();
  {
    std::lock_guard lock(mutex_);
    broken_ = true;  // until there is another one
    broker_.emplace(options_.broker, channel_, places_);
    if (leaving_) broker_->begin_to_leave();
    meetings_.clear();
    broken_ = false;
  }
  membership_->rejoin();
}

// Nothing is heard that was said after the time that is returned.
Nanos ClusterNode::hear_all() {
  std::vector<Control> heard;
  {
    std::lock_guard inner(data_mutex_);
    heard.swap(inbox_);
  }
  const Nanos now = clock_.now();
  for (const Control& c : heard) hear(c, now);
  meet_those_due(now);
  return now;
}

void ClusterNode::set_due() {
  const ControlPlane* control = broker_->control();
  leads_ = control && control->gmanager().leads();
  peers_ = control ? static_cast<uint32_t>(control->post().peers()) : 0;
  if (control) settlements_ = control->gmanager().counts().settlements;
  Nanos due = broker_->next_deadline();
  for (const auto& [instance, m] : meetings_) {
    if (m.due) due = std::min(due, m.at);
  }
  due_ = due;
}

void ClusterNode::hear(const Control& control, Nanos now) {
  if (const auto* event = std::get_if<MembershipEvent>(&control)) return hear(*event, now);
  if (const auto* message = std::get_if<PeerMessage>(&control)) return broker_->handle(*message, now);
  const PeerId& peer = std::get<PeerDied>(control).peer;
  broker_->lost(peer, now);
  const std::vector<Member> members = membership_->members();
  const auto is_meant = [&](const Member& member) { return member.id.instance == peer.instance; };
  if (std::none_of(members.begin(), members.end(), is_meant)) return;
  Meeting& m = meetings_[peer.instance];
  const bool soon = m.pause > 0 && now - m.at < 2 * m.pause;
  m.pause = soon ? std::min(2 * m.pause, options_.meet_again_most) : options_.meet_again;
  m.at = now + m.pause;
  m.due = true;
}

void ClusterNode::count_lendable() {
  uint64_t cells = 0;
  for (const Member& m : membership_->members()) {
    if (check_compatible(options_.self, m).ok()) cells += m.lends_cells;
  }
  lendable_ = static_cast<uint32_t>(std::min<uint64_t>(cells, UINT32_MAX));
}

void ClusterNode::hear(const MembershipEvent& event, Nanos now) {
  if (const auto* joined = std::get_if<MemberJoined>(&event)) {
    meetings_[joined->member.id.instance] = {now + options_.meet_first, 0, true};
    count_lendable();
  } else if (const auto* left = std::get_if<MemberLeft>(&event)) {
    transport_->forget(left->id);
    if (const std::shared_ptr<Data> data = this->data()) {
      data->borrowed->lost(left->id);
      data->lent->lost(left->id);
    }
    broker_->lost(left->id, now);
    not_compatible_.erase(left->id.instance);
    meetings_.erase(left->id.instance);
    count_lendable();
  } else if (const auto* elected = std::get_if<LeaderElected>(&event)) {
    broker_->leader(elected->leader.id, elected->leader.term, now);
  } else if (std::holds_alternative<DirectoryDown>(event)) {
    broker_->directory(false, now);
  } else if (std::holds_alternative<DirectoryUp>(event)) {
    broker_->directory(true, now);
  } else if (std::holds_alternative<EpochLost>(event)) {
    broker_->end_life();
    meetings_.clear();
  } else if (const auto* again = std::get_if<Rejoined>(&event)) {
    broker_->end_life();  // of which the event may be lost
    broker_->begin_life(again->id);
    for (const Member& m : membership_->members()) meet(m, now);
    count_lendable();
    if (const auto leader = membership_->leader()) broker_->leader(leader->id, leader->term, now);
  }
}

// A member with another numerics id or protocol version is ignored.
void ClusterNode::meet(const Member& member, Nanos now) {
  const Status fits = check_compatible(options_.self, member);
  if (!fits.ok()) {
    if (not_compatible_[member.id.instance] != fits.message()) log_warning("{}", fits.message());
    not_compatible_[member.id.instance] = fits.message();
    return;
  }
  transport_->introduce(member.id, member.transport_address);
  broker_->joined(member.id, now);
}

void ClusterNode::meet_those_due(Nanos now) {
  const auto is_due = [&](const auto& meeting) { return meeting.second.due && meeting.second.at <= now; };
  if (std::none_of(meetings_.begin(), meetings_.end(), is_due)) return;
  for (const Member& member : membership_->members()) {
    const auto it = meetings_.find(member.id.instance);
    if (it != meetings_.end() && is_due(*it)) meet(member, now);
  }
  for (auto& meeting : meetings_) {
    if (is_due(meeting)) meeting.second = {now, meeting.second.pause, false};
  }
}

// ---------------------------------------------------------------- for people

NodeFigures ClusterNode::figures() const {
  NodeFigures f{.member = member_,
                .leads = leads_,
                .peers = peers_,
                .settlements = settlements_,
                .borrowed = {},
                .lent = {}};
  if (const auto since = membership_->down_since()) {
    f.directory_down_s = static_cast<double>(clock_.now() - *since) / static_cast<double>(kNanosPerSecond);
  }
  if (const std::shared_ptr<Data> data = this->data()) {
    f.borrowed = data->borrowed->stats();
    f.lent = data->lent->stats();
  }
  return f;
}

std::string ClusterNode::status_text() const {
  const std::lock_guard lock(text_mutex_);
  const Nanos now = clock_.now();
  if (text_.empty() || now - text_since_ >= kStatusLives) {
    text_ = to_json(status());
    text_since_ = now;
  }
  return text_;
}

NodeStatus ClusterNode::status() const {
  NodeStatus s;
  std::vector<Member> members = membership_->members();
  if (const auto leader = membership_->leader()) {
    s.leader = leader->id.instance;
    s.term = leader->term;
  }
  const Nanos now = clock_.now();
  if (const auto since = membership_->down_since()) {
    s.directory_down_s = static_cast<double>(now - *since) / static_cast<double>(kNanosPerSecond);
  }
  s.self = {options_.self.id.instance, 0};
  s.location = options_.broker.protocol.location;
  s.lend_cap = options_.broker.protocol.lend_cap;
  s.borrowable_cells = options_.broker.borrowable_cells;
  if (options_.memory) s.cell_bytes = options_.memory->shape.geometry.kv_cell_bytes();
  const std::shared_ptr<Data> data = this->data();
  if (data) {
    s.borrowed = data->borrowed->stats();
    s.lent = data->lent->stats();
  }
  std::map<PeerId, uint32_t, ByPeer> lent, borrowed;
  {
    // Steps wait for this lock: what is there is copied, and no more.
    const std::lock_guard lock(mutex_);
    s.not_compatible = not_compatible_;
    if (broken_) return s;
    s.free_cells = broker_->frames().free_blocks();
    s.total_cells = broker_->frames().total_blocks();
    const ControlPlane* control = broker_->control();
    if (!control) return s;
    s.self = control->post().self();
    const RManager& rmanager = control->rmanager();
    s.leaving = broker_->leaving();
    s.room = rmanager.lender().room();
    s.settling = rmanager.settling();
    lent = rmanager.lender().by_debtor();
    borrowed = rmanager.borrower().by_creditor();
    std::erase_if(members, [&](const Member& m) { return !control->post().knows(m.id); });
    const GManager& gmanager = control->gmanager();
    if (gmanager.leads()) {
      s.counts = gmanager.counts();
      for (const auto& [id, e] : gmanager.ledger().entries()) {
        const InstanceFigures& f = e.figures;
        s.ledger.push_back({id,
                            {.free = f.free,
                             .total = f.total,
                             .room = f.room,
                             .lendable = f.lendable,
                             .own = f.own,
                             .own_since = f.own_since,
                             .device = f.device,
                             .location = f.location,
                             .lent = f.lent,
                             .owed = f.owed,
                             .due = {}},  // there may be thousands
                            now - e.heard,
                            e.refused});
      }
    }
  }
  for (const Member& m : members) {
    PeerLink link;
    link.peer = m.id;
    link.address = m.transport_address;
    if (const auto it = lent.find(m.id); it != lent.end()) link.lent = it->second;
    if (const auto it = borrowed.find(m.id); it != borrowed.end()) link.borrowed = it->second;
    if (data) link.cost = data->borrowed->cost(m.id);
    s.links.push_back(std::move(link));
  }
  return s;
}

}  // namespace kvasir::cluster
