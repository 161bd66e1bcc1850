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

namespace cleave {

/// What one rank sent to another.
struct Message {
  CallHeader header{};
  CallNote note{};
  std::vector<std::byte> data;
};

/// Messages between two ranks of a job, through a ring of chunks in the shared segment for each pair.
///
/// A rank that waits, for room or for a message, takes in what others send it meanwhile, so a
/// sender never depends on which message its receiver waits for.
class Mailbox {
 public:
  explicit Mailbox(std::shared_ptr<RankEndpoint> end) : end_(std::move(end)) {}

  /// Returns when the data may be reused. `head.data` is not read.
  void send(int to, const Message& head, std::span<const std::byte> data);

  /// The next message of this group from a world rank, in the order of sending.
  Message receive(int from, uint32_t group);

 private:
  void wait_for_room(MessageRing& ring, const Message& head, int to);
  void take_in(int from);
  void take_in_all();
  bool pop(int from, uint32_t group, Message& message);

  std::shared_ptr<RankEndpoint> end_;
  std::mutex send_mutex_;
  std::mutex receive_mutex_;                                       // the two below
  std::map<int, Message> partial_;                                 // by sender
  std::map<std::pair<int, uint32_t>, std::deque<Message>> inbox_;  // by sender and group
};

}  // namespace cleave
