#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace cleave::fake_device {

/// The streams of a device. Kernels of the default stream run when they are called, since only
/// later copies can show when they ran. Queued are what may end late on a GPU: collectives, and
/// copies to pinned host memory. They run when somebody waits for their stream or for an event
/// behind them, in the order of the queue, and not earlier.
enum class StreamId : int64_t { kDefault = 0, kCollectives = 1 };

/// Device memory that a queued task uses.
using Memory = std::span<const std::byte>;

/// A place in a stream: the tasks queued so far.
struct Event {
  int device = 0;
  StreamId stream = StreamId::kDefault;
  uint64_t number = 0;
};

/// Queues a task. The memory in `uses` must live until it has run.
Event enqueue(int device, StreamId stream, std::vector<Memory> uses, std::function<void()> task);
/// The event behind all tasks of the stream.
[[nodiscard]] Event last_event(int device, StreamId stream);
[[nodiscard]] bool has_ended(const Event& event);
/// Runs the tasks of the event's stream up to it. Rethrows their errors.
void run_until(const Event& event);

/// Ends the process with a message if a queued task uses the memory, which is about to be freed.
void check_unused(Memory freed);

}  // namespace cleave::fake_device
