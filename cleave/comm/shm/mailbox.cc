#include "cleave/comm/shm/mailbox.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "cleave/comm/diagnostics/watchdog.h"
#include "cleave/comm/shm/futex.h"

namespace cleave::inline comm {
namespace {

// How long a rank that waits for one peer sleeps before it drains the rings of the others again.
constexpr std::chrono::milliseconds kDrainPeriod{1};

}  // namespace

void Mailbox::send(int to, const Message& head, std::span<const std::byte> data) {
  const std::lock_guard lock(send_mutex_);
  MessageRing& ring = endpoint_->segment().ring(endpoint_->rank(), to);
  size_t sent = 0;
  do {
    wait_for_space(ring, head, to);
    const uint32_t number = ring.head.load(std::memory_order_relaxed);
    MessageChunk& chunk = ring.chunks[number % kNumChunks];
    chunk.header = head.header;
    chunk.note = head.note;
    chunk.message_bytes = data.size();
    chunk.bytes = std::min<uint64_t>(data.size() - sent, kChunkBytes);
    if (chunk.bytes > 0) std::memcpy(chunk.data, data.data() + sent, chunk.bytes);
    sent += chunk.bytes;
    ring.head.store(number + 1, std::memory_order_seq_cst);
    if (ring.num_waiting_receivers.load(std::memory_order_seq_cst) != 0) futex_wake_all(ring.head);
    if (endpoint_->replicator() != nullptr) endpoint_->replicator()->send(to, number);
  } while (sent < data.size());
}

void Mailbox::wait_for_space(MessageRing& ring, const Message& head, int to) {
  const uint32_t number = ring.head.load(std::memory_order_relaxed);
  const auto has_space = [&] {
    return number - ring.tail.load(std::memory_order_seq_cst) < kNumChunks;
  };
  for (int spin = 0; spin < endpoint_->num_spins() && !has_space(); ++spin) spin_pause();
  if (has_space()) return;
  Watchdog watch(*endpoint_, {.kind = WaitKind::kSend,
                              .group = head.header.group,
                              .stamp = ring.tail.load(std::memory_order_seq_cst),
                              .peer = to});
  auto last_check = std::chrono::steady_clock::now();
  while (!has_space()) {
    drain_all();
    ring.num_waiting_senders.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = ring.tail.load(std::memory_order_seq_cst);
    if (number - seen >= kNumChunks) futex_wait(ring.tail, seen, kDrainPeriod);
    ring.num_waiting_senders.fetch_sub(1, std::memory_order_seq_cst);
    const auto now = std::chrono::steady_clock::now();
    if (now - last_check < Watchdog::kPeriod || has_space()) continue;
    watch.check();
    last_check = now;
  }
}

void Mailbox::drain_all() {
  for (int from = 0; from < endpoint_->segment().num_ranks(); ++from) {
    if (from != endpoint_->rank() &&
        endpoint_->segment().channel_ends(from, endpoint_->rank()) != nullptr)
      drain(from);
  }
}

void Mailbox::drain(int from) {
  const std::lock_guard lock(receive_mutex_);
  MessageRing& ring = endpoint_->segment().ring(from, endpoint_->rank());
  uint32_t number = ring.tail.load(std::memory_order_relaxed);
  while (number != ring.head.load(std::memory_order_acquire)) {
    const MessageChunk& chunk = ring.chunks[number % kNumChunks];
    auto [at, is_new] = partial_.try_emplace(from);
    Message& message = at->second;
    if (is_new) {
      message.header = chunk.header;
      message.note = chunk.note;
      if (chunk.message_bytes > 0) message.data = std::exchange(spare_, {});
      message.data.clear();
      message.data.reserve(chunk.message_bytes);
    }
    message.data.insert(message.data.end(), chunk.data, chunk.data + chunk.bytes);
    if (message.data.size() == chunk.message_bytes) {
      inbox_[{from, message.header.group}].push_back(std::move(message));
      partial_.erase(at);
    }
    ring.tail.store(++number, std::memory_order_seq_cst);
    if (ring.num_waiting_senders.load(std::memory_order_seq_cst) != 0) futex_wake_all(ring.tail);
    if (endpoint_->replicator() != nullptr) endpoint_->replicator()->acknowledge(from, number);
  }
}

void Mailbox::recycle(std::vector<std::byte>&& data) {
  const std::lock_guard lock(receive_mutex_);
  if (data.capacity() > spare_.capacity()) spare_ = std::move(data);
}

bool Mailbox::pop(int from, uint32_t group, Message& message) {
  drain(from);
  const std::lock_guard lock(receive_mutex_);
  auto& queue = inbox_[{from, group}];
  if (queue.empty()) return false;
  message = std::move(queue.front());
  queue.pop_front();
  return true;
}

Message Mailbox::receive(int from, uint32_t group) {
  Message message;
  if (pop(from, group, message)) return message;
  MessageRing& ring = endpoint_->segment().ring(from, endpoint_->rank());
  const auto is_empty = [&] {
    return ring.head.load(std::memory_order_seq_cst) == ring.tail.load(std::memory_order_seq_cst);
  };
  for (int spin = 0; spin < endpoint_->num_spins() && is_empty(); ++spin) spin_pause();
  if (pop(from, group, message)) return message;
  Watchdog watch(*endpoint_, {.kind = WaitKind::kRecv,
                              .group = group,
                              .stamp = ring.tail.load(std::memory_order_seq_cst),
                              .peer = from});
  auto last_check = std::chrono::steady_clock::now();
  while (!pop(from, group, message)) {
    ring.num_waiting_receivers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = ring.head.load(std::memory_order_seq_cst);
    if (is_empty()) futex_wait(ring.head, seen, kDrainPeriod);
    ring.num_waiting_receivers.fetch_sub(1, std::memory_order_seq_cst);
    drain_all();
    if (pop(from, group, message)) break;
    // Chunks of this message, or messages of other groups, may have arrived.
    watch.note_progress(ring.tail.load(std::memory_order_seq_cst));
    const auto now = std::chrono::steady_clock::now();
    if (now - last_check < Watchdog::kPeriod) continue;
    watch.check();
    last_check = now;
  }
  return message;
}

}  // namespace cleave::inline comm
