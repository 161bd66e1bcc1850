#pragma once
#include <functional>
#include <future>
#include <utility>

#include "cleave/comm/api/group.h"

namespace cleave::inline comm {

/// A group whose collectives may also run asynchronously, on a helper thread of the rank.
///
/// All members start the same calls in the same order. Started calls and the rank's own calls form
/// one sequence, so a mismatch is detected as for any other call.
class AsyncGroup : public Group {
 public:
  /// This group: its collectives may run asynchronously.
  [[nodiscard]] AsyncGroup* async() final { return this; }
  /// Queues `call`, which calls collectives of this group, on the group's helper thread; calls run
  /// in the order in which they were started. The future holds what `call` throws. `call` must own
  /// the memory that it uses, because the starting function may exit by an exception.
  virtual std::shared_future<void> start(std::function<void()> call) = 0;
  /// Whether this is device memory, whose collectives start_on_device() starts.
  [[nodiscard]] virtual bool is_on_device(const void* data) const = 0;
  /// Whether its collectives of device memory can be recorded (DeviceGroup::can_record()). False
  /// before the first one; true if all memory is CPU memory.
  [[nodiscard]] virtual bool can_record() const = 0;
  /// From now on messages of device memory between neighbours (are_neighbours()) stay on the
  /// devices, if these can send them; others pass through host memory. Collective; does nothing
  /// when called again.
  virtual void connect_messages() = 0;
  /// Runs `call`, which calls one collective of device memory, on the calling thread, so that a
  /// rank queues all collectives on its device in one order. Returns when it is queued. await()
  /// lets the device wait for it; the memory that `call` owns is kept until then.
  virtual std::shared_future<void> start_on_device(std::function<void()> call) = 0;
  /// Waits for a started call and rethrows its exception. If the call has not begun, the waiting
  /// thread runs it.
  virtual void await(const std::shared_future<void>& done) = 0;
  /// Waits until all started calls are done. The rank's own thread must call this before it calls a
  /// collective of the group itself.
  virtual void await_started() = 0;

 protected:
  using Group::Group;
};

}  // namespace cleave::inline comm
