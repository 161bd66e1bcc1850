#include "tests/fake_device/stream.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>

#include "tests/fake_device/memory.h"

namespace cleave::fake_device {
namespace {

constexpr size_t kStreams = 2;

struct Task {
  std::vector<Memory> uses;
  std::function<void()> run;
};

struct Queue {
  std::mutex mutex;              // of the members below
  std::recursive_mutex running;  // held while a task runs: tasks run one after the other
  std::deque<Task> tasks;
  uint64_t num_queued = 0, num_ended = 0;
};

Queue& queue_of(int device, StreamId stream) {
  static auto* const all = new std::array<Queue, kStreams * kMaxDevices>;
  return (*all)[static_cast<size_t>(device) * kStreams + static_cast<size_t>(stream)];
}

bool overlap(Memory a, Memory b) {
  return a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

}  // namespace

Event enqueue(int device, StreamId stream, std::vector<Memory> uses, std::function<void()> task) {
  Queue& queue = queue_of(device, stream);
  const std::scoped_lock lock(queue.mutex);
  queue.tasks.push_back({std::move(uses), std::move(task)});
  return {device, stream, ++queue.num_queued};
}

Event last_event(int device, StreamId stream) {
  Queue& queue = queue_of(device, stream);
  const std::scoped_lock lock(queue.mutex);
  return {device, stream, queue.num_queued};
}

bool has_ended(const Event& event) {
  Queue& queue = queue_of(event.device, event.stream);
  const std::scoped_lock lock(queue.mutex);
  return queue.num_ended >= event.number;
}

void run_until(const Event& event) {
  Queue& queue = queue_of(event.device, event.stream);
  const std::scoped_lock order(queue.running);
  while (!has_ended(event)) {
    std::function<void()> run;
    {
      const std::scoped_lock lock(queue.mutex);
      run = std::move(queue.tasks.front().run);
    }
    run();
    const std::scoped_lock lock(queue.mutex);
    queue.tasks.pop_front();
    ++queue.num_ended;
  }
}

void check_unused(Memory freed) {
  const int device = device_of(freed.data());
  for (const StreamId stream : {StreamId::kDefault, StreamId::kCollectives}) {
    Queue& queue = queue_of(device, stream);
    const std::scoped_lock lock(queue.mutex);
    for (const Task& task : queue.tasks) {
      for (const Memory used : task.uses) {
        if (!overlap(used, freed)) continue;
        (void)std::fputs("fake device: memory is freed that a stream still uses\n", stderr);
        std::abort();
      }
    }
  }
}

}  // namespace cleave::fake_device
