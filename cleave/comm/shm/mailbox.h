#pragma once
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "cleave/comm/shm/rank_endpoint.h"

namespace cleave::inline comm {

/// A message from one rank to another.
struct Message {
  CallHeader header{};
  CallNote note{};
  std::vector<std::byte> data;
};

/// Sends and receives messages between ranks. Each ordered pair of ranks has a ring of chunks in
/// the shared segment.
///
/// A rank that waits, for space or for a message, drains the rings of all senders meanwhile. So a
/// sender never depends on which message its receiver waits for.
class Mailbox {
 public:
  explicit Mailbox(std::shared_ptr<RankEndpoint> endpoint) : endpoint_(std::move(endpoint)) {}

  /// Returns when `data` may be reused. Does not read `head.data`.
  void send(int to, const Message& head, std::span<const std::byte> data);

  /// Receives the next message of this group from world rank `from`, in sending order.
  Message receive(int from, uint32_t group);
  /// Takes back the memory of a received message for a later one: new memory costs a page fault per
  /// 4 KiB.
  void recycle(std::vector<std::byte>&& data);

 private:
  void wait_for_space(MessageRing& ring, const Message& head, int to);
  void drain(int from);
  void drain_all();
  bool pop(int from, uint32_t group, Message& message);

  std::shared_ptr<RankEndpoint> endpoint_;
  std::mutex send_mutex_;
  std::mutex receive_mutex_;                                       // guards the members below
  std::vector<std::byte> spare_;                                   // memory for the next message
  std::map<int, Message> partial_;                                 // incomplete messages, by sender
  std::map<std::pair<int, uint32_t>, std::deque<Message>> inbox_;  // by sender and group
};

}  // namespace cleave::inline comm
