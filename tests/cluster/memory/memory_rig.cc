#include "cluster/memory/memory_rig.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "ops/attention_tree.h"
#include "ops/cpu/isa.h"

namespace kvasir::test {

MemoryShape memory_shape(ops::KvType type, int64_t kv_heads, int64_t queries_per_kv, int64_t head_dim,
                         uint32_t block_tokens, uint32_t layers_per_group) {
  MemoryShape shape;
  shape.kv = {1, kv_heads, head_dim, block_tokens, type};
  shape.queries_per_kv = queries_per_kv;
  shape.geometry.block_tokens = block_tokens;
  shape.geometry.layers = layers_per_group;
  shape.geometry.layers_per_group = layers_per_group;
  shape.geometry.kv_plane_bytes_per_token_layer =
      static_cast<uint64_t>(kv_heads * ops::kv_row_bytes(type, head_dim));
  return shape;
}

// ---------------------------------------------------------------- cells

OwnedCells::~OwnedCells() {
  KV_CHECK(pinned_ == 0, "pinned={}", pinned_);
}

void OwnedCells::lend(const PeerId& debtor, uint64_t contract, uint32_t cells) {
  std::lock_guard lock(mutex_);
  Contract& made = contracts_[{debtor.instance, debtor.epoch, contract}];
  made.bytes = std::make_unique<std::byte[]>(cells * cell_bytes_);
  made.cells = cells;
}

void OwnedCells::end(const PeerId& debtor, uint64_t contract) {
  std::lock_guard lock(mutex_);
  contracts_.at({debtor.instance, debtor.epoch, contract}).ended = true;
}

uint64_t OwnedCells::pinned() const {
  std::lock_guard lock(mutex_);
  return pinned_;
}

bool OwnedCells::pin(const PeerId& debtor, std::span<const CellRun> runs, std::vector<std::byte*>& at,
                     std::vector<uint32_t>& pins) {
  if (when_pinned) when_pinned();
  std::lock_guard lock(mutex_);
  std::vector<std::byte*> there;
  for (const CellRun& run : runs) {
    const auto found = contracts_.find({debtor.instance, debtor.epoch, run.contract});
    if (found == contracts_.end() || found->second.ended) return false;
    for (uint32_t i = 0; i < run.count; ++i) {
      const uint32_t index = run.first + run.stride * i;
      if (index >= found->second.cells) return false;
      there.push_back(found->second.bytes.get() + index * cell_bytes_);
    }
  }
  at.insert(at.end(), there.begin(), there.end());
  pins.resize(pins.size() + there.size());
  pinned_ += there.size();
  return true;
}

void OwnedCells::unpin(std::span<const uint32_t> pins) {
  std::lock_guard lock(mutex_);
  KV_CHECK(pinned_ >= pins.size(), "pinned={} of {}", pins.size(), pinned_);
  pinned_ -= pins.size();
}

// ---------------------------------------------------------------- network

SendData HeldNetwork::sender(const PeerId& from) {
  return [this, from](const PeerId& to, std::vector<std::byte> bytes) -> Status {
    std::lock_guard lock(mutex_);
    if (std::find(refused_.begin(), refused_.end(), to) != refused_.end()) {
      return error(ErrorCode::kUnavailable, "{} cannot be reached", to.instance);
    }
    pairs_[{from.instance, from.epoch, to.instance, to.epoch}].push_back({from, to, std::move(bytes)});
    return {};
  };
}

void HeldNetwork::refuse(const PeerId& to) {
  std::lock_guard lock(mutex_);
  refused_.push_back(to);
}

size_t HeldNetwork::waiting() const {
  std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const auto& [pair, queue] : pairs_) count += queue.size();
  return count;
}

std::optional<HeldNetwork::Packet> HeldNetwork::take(const PeerId& from, const PeerId& to) {
  std::lock_guard lock(mutex_);
  auto& queue = pairs_[{from.instance, from.epoch, to.instance, to.epoch}];
  if (queue.empty()) return std::nullopt;
  Packet packet = std::move(queue.front());
  queue.pop_front();
  return packet;
}

bool HeldNetwork::deliver_one(Random& random) {
  std::optional<Packet> packet;
  {
    std::lock_guard lock(mutex_);
    std::vector<std::deque<Packet>*> full;
    for (auto& [pair, queue] : pairs_) {
      if (!queue.empty()) full.push_back(&queue);
    }
    if (full.empty()) return false;
    std::deque<Packet>& queue = *full[random.below(full.size())];
    packet = std::move(queue.front());
    queue.pop_front();
  }
  deliver_(*packet);
  return true;
}

// ---------------------------------------------------------------- world

MemoryWorld::MemoryWorld(const MemoryShape& with, int count, uint32_t leaves, uint64_t seed,
                         BorrowedMemoryOptions options, LentMemoryOptions lent, bool own_thread)
    : shape(with), kernels(ops::kernels_for(ops::detect_isa())), random(seed), leaves_(leaves) {
  const uint32_t cells = leaves * shape.blocks_per_leaf();
  options.cells = cells;
  options.own_thread = own_thread;
  borrowed = std::make_unique<BorrowedMemory>(options, self, shape, kernels, clock, network.sender(self));
  for (int c = 0; c < count; ++c) {
    Creditor creditor;
    creditor.id = {"creditor" + std::to_string(c), 100 + static_cast<uint64_t>(c)};
    creditor.cells = std::make_unique<OwnedCells>(shape.geometry.kv_cell_bytes());
    creditor.memory = std::make_unique<LentMemory>(lent, creditor.id, shape, kernels, *creditor.cells, clock,
                                                   network.sender(creditor.id));
    creditors.push_back(std::move(creditor));
  }
  network.set_deliver([this](const HeldNetwork::Packet& packet) {
    if (packet.to == self) return borrowed->handle(packet.from, packet.bytes);
    for (Creditor& creditor : creditors) {
      if (creditor.id == packet.to) creditor.memory->handle(packet.from, packet.bytes);
    }
  });
  bytes_.resize(cells * shape.geometry.kv_cell_bytes());
  const auto kv_dim = static_cast<size_t>(shape.kv.kv_heads * shape.kv.head_dim);
  std::vector<float> k(kv_dim), v(kv_dim);
  for (uint32_t piece = 0; piece < cells * shape.geometry.layers_per_group; ++piece) {
    std::byte* at = bytes_.data() + piece * shape.piece_bytes();
    for (int64_t token = 0; token < shape.kv.block_tokens; ++token) {
      for (size_t i = 0; i < kv_dim; ++i) {
        k[i] = static_cast<float>(random.unit() * 2 - 1);
        v[i] = static_cast<float>(random.unit() * 2 - 1);
      }
      kernels.write_kv(shape.kv, 0, token, k.data(), v.data(), at, at + shape.geometry.layer_plane_bytes());
    }
  }
}

MemoryWorld::~MemoryWorld() {
  for (Creditor& creditor : creditors) creditor.memory.reset();
  borrowed.reset();
}

void MemoryWorld::place(const std::function<int(uint32_t leaf)>& pick) {
  const uint32_t per_leaf = shape.blocks_per_leaf();
  int at = 0;
  place_blocks([&](uint32_t cell) { return at = cell % per_leaf == 0 ? pick(cell / per_leaf) : at; });
}

void MemoryWorld::place_anywhere(uint32_t in) {
  const uint32_t per_leaf = shape.blocks_per_leaf();
  int at = 0;
  bool split = false;
  place_blocks([&](uint32_t cell) {
    if (cell % per_leaf == 0) split = random.below(in) == 0;
    if (cell % per_leaf == 0 || split) at = static_cast<int>(random.below(creditors.size()));
    return at;
  });
}

void MemoryWorld::place_blocks(const std::function<int(uint32_t cell)>& pick) {
  const uint32_t per_leaf = shape.blocks_per_leaf();
  std::vector<std::vector<uint32_t>> cells(creditors.size());
  for (uint32_t cell = 0; cell < leaves_ * per_leaf; ++cell) {
    cells[static_cast<size_t>(pick(cell))].push_back(cell);
  }
  for (size_t c = 0; c < creditors.size(); ++c) {
    auto& theirs = cells[c];
    // Half of the worlds have their cells in order, as a fresh contract gives them.
    if (random.below(2) == 0) {
      for (size_t i = theirs.size(); i > 1; --i) std::swap(theirs[i - 1], theirs[random.below(i)]);
    }
    uint32_t used[kContracts] = {};
    const auto most = static_cast<uint32_t>(theirs.size() + 1);
    for (uint64_t k = 0; k < kContracts; ++k) creditors[c].cells->lend(self, k + 1, most);
    for (const uint32_t cell : theirs) {
      const uint64_t k = random.below(kContracts);
      borrowed->map(creditors[c].id, k + 1, used[k]++, cell, 1);
    }
  }
  std::deque<Outcome> outcomes;
  const uint64_t bytes = shape.geometry.kv_cell_bytes();
  for (uint64_t cell = 0; cell < uint64_t{leaves_} * per_leaf; ++cell) {
    borrowed->write(cell * bytes, {local(cell), bytes}, outcomes.emplace_back().done());
  }
  run();
  for (const Outcome& outcome : outcomes) {
    KV_CHECK(outcome.calls == 1 && outcome.status.ok(), "calls={} {}", outcome.calls,
             outcome.status.message());
  }
}

void MemoryWorld::run() {
  for (bool more = true; more;) {
    more = network.deliver_one(random);
    for (Creditor& creditor : creditors) {
      if (random.below(2) == 0 || !more) more |= creditor.memory->serve_one();
    }
    if (random.below(2) == 0 || !more) more |= borrowed->attend_one();
  }
}

std::vector<float> MemoryWorld::random_query(uint32_t rows) {
  std::vector<float> q(rows * static_cast<size_t>(shape.q_dim()));
  // Scores close to one another: with a few large ones the order of the sums would not show.
  for (float& x : q) x = static_cast<float>(random.unit() * 0.4 - 0.2);
  return q;
}

std::vector<uint64_t> MemoryWorld::pieces(LeafRun run, uint32_t layer) const {
  std::vector<uint64_t> out;
  for (uint64_t cell = uint64_t{run.first} * shape.blocks_per_leaf();
       cell < uint64_t{run.end} * shape.blocks_per_leaf(); ++cell) {
    out.push_back(cell * shape.geometry.kv_cell_bytes() + layer * shape.piece_bytes());
  }
  return out;
}

std::vector<float> MemoryWorld::room(LeafRun run, uint32_t rows) const {
  return std::vector<float>(shape.partial_bytes(rows, subtrees_of(run)) / sizeof(float), -1.0f);
}

void MemoryWorld::attend(LeafRun run, uint32_t layer, std::span<const float> q, uint32_t rows,
                         std::span<float> partials, Outcome& outcome) {
  const std::vector<uint64_t> at = pieces(run, layer);
  RemoteQuery query{run.first, run.end, rows, q.data(), shape.q_dim(), at};
  borrowed->attend(query, partials, outcome.done());
}

std::vector<float> MemoryWorld::expected(LeafRun run, uint32_t layer, std::span<const float> q,
                                         uint32_t rows) const {
  const ops::FlushToZero mode;
  const int64_t record = shape.record_floats();
  std::vector<float> storage(static_cast<size_t>(
      ops::AttentionTree::storage_floats(run.leaves(), shape.queries_per_kv, shape.kv.head_dim)));
  std::vector<float> partial(static_cast<size_t>(record)), out;
  const int32_t valid = ops::kLeafTokens;
  for (uint32_t row = 0; row < rows; ++row) {
    for (int64_t head = 0; head < shape.kv.kv_heads; ++head) {
      ops::AttentionTree tree(kernels, shape.queries_per_kv, shape.kv.head_dim, storage.data(), run.leaves(),
                              run.first);
      for (uint32_t leaf = run.first; leaf < run.end; ++leaf) {
        std::vector<const void*> k, v;
        for (const uint64_t piece : pieces({leaf, leaf + 1}, layer)) {
          k.push_back(bytes_.data() + piece + ops::kv_tile_offset(shape.kv, 0, head));
          v.push_back(bytes_.data() + piece + shape.geometry.layer_plane_bytes() +
                      ops::kv_tile_offset(shape.kv, 0, head));
        }
        ops::AttentionLeafArgs args;
        args.q = q.data() + row * shape.q_dim() + head * shape.queries_per_kv * shape.kv.head_dim;
        args.q_stride = shape.q_dim();
        args.rows = 1;
        args.heads = shape.queries_per_kv;
        args.head_dim = shape.kv.head_dim;
        args.valid = &valid;
        args.k_tiles = k.data();
        args.v_tiles = v.data();
        args.block_tokens = shape.kv.block_tokens;
        args.type = shape.kv.type;
        args.out = partial.data();
        args.out_stride = record;
        kernels.attention_leaf(args);
        tree.push(partial.data());
      }
      for (int p = 0; p < tree.peak_count(); ++p) {
        out.insert(out.end(), tree.peak(p).partial, tree.peak(p).partial + record);
      }
    }
  }
  return out;
}

}  // namespace kvasir::test
