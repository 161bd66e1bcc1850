// What libtorch asks a device: current device and stream, events, pinned memory.
#include "tests/fake_device/device.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <mutex>

#include <ATen/Context.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Backtrace.h>

#include "tests/fake_device/memory.h"
#include "tests/fake_device/stream.h"

namespace cleave::fake_device {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

thread_local int current = 0;

struct AtomicCounts {
  std::atomic<int64_t> reads{0}, uploads{0}, messages{0};
};
std::array<AtomicCounts, kMaxDevices> counts;

Device device_at(int index) {
  return {c10::kPrivateUse1, static_cast<DeviceIndex>(index)};
}

int index_of(Device device) {
  return device.has_index() ? device.index() : current;
}

StreamId id_of(const Stream& stream) {
  return static_cast<StreamId>(stream.id());
}

/// A compute thread has one stream, the default one.
class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  [[nodiscard]] c10::DeviceType type() const override { return c10::kPrivateUse1; }
  [[nodiscard]] Device exchangeDevice(Device device) const override {
    return device_at(std::exchange(current, index_of(device)));
  }
  [[nodiscard]] Device getDevice() const override { return device_at(current); }
  void setDevice(Device device) const override { current = index_of(device); }
  void uncheckedSetDevice(Device device) const noexcept override { current = index_of(device); }
  [[nodiscard]] DeviceIndex deviceCount() const noexcept override { return kMaxDevices; }

  [[nodiscard]] Stream getStream(Device device) const override { return getDefaultStream(device); }
  [[nodiscard]] Stream getDefaultStream(Device device) const override {
    return Stream(Stream::DEFAULT, device_at(index_of(device)));
  }
  [[nodiscard]] Stream exchangeStream(Stream stream) const override {
    TORCH_CHECK(id_of(stream) == StreamId::kDefault, "fake device: another compute stream");
    return stream;
  }

  void record(void** event, const Stream& stream, DeviceIndex /*index*/,
              c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = new Event;
    *static_cast<Event*>(*event) = last_event(index_of(stream.device()), id_of(stream));
  }
  void destroyEvent(void* event, DeviceIndex /*index*/) const noexcept override {
    delete static_cast<Event*>(event);
  }
  // The waiting stream's kernels run when they are called, so what they wait for must run now.
  void block(void* event, const Stream& /*stream*/) const override {
    if (event != nullptr) run_until(*static_cast<Event*>(event));
  }
  [[nodiscard]] bool queryEvent(void* event) const override {
    return event == nullptr || has_ended(*static_cast<Event*>(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    const Event& waited = *static_cast<Event*>(event);
    count(waited.device, Wait::kRead);
    run_until(waited);
  }
  [[nodiscard]] bool queryStream(const Stream& stream) const override {
    return has_ended(last_event(index_of(stream.device()), id_of(stream)));
  }
  void synchronizeStream(const Stream& stream) const override {
    const int device = index_of(stream.device());
    count(device, Wait::kRead);
    run_until(last_event(device, id_of(stream)));
  }
  void synchronizeDevice(DeviceIndex index) const override {
    count(index, Wait::kRead);
    run_until(last_event(index, StreamId::kCollectives));
    run_until(last_event(index, StreamId::kDefault));
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  [[nodiscard]] bool isBuilt() const override { return true; }
  [[nodiscard]] bool isAvailable() const override { return true; }
  [[nodiscard]] bool hasPrimaryContext(DeviceIndex /*index*/) const override { return true; }
  [[nodiscard]] DeviceIndex deviceCount() const override { return kMaxDevices; }
  void setCurrentDevice(DeviceIndex index) const override { current = index; }
  [[nodiscard]] DeviceIndex getCurrentDevice() const override {
    return static_cast<DeviceIndex>(current);
  }
  [[nodiscard]] DeviceIndex exchangeDevice(DeviceIndex index) const override {
    return static_cast<DeviceIndex>(std::exchange(current, index));
  }
  [[nodiscard]] DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  [[nodiscard]] bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  [[nodiscard]] at::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned_allocator();
  }
  [[nodiscard]] Device getDeviceFromPtr(void* data) const override {
    return device_at(device_of(data));
  }
};

}  // namespace

Counts counts_of(int device) {
  const AtomicCounts& own = counts[static_cast<size_t>(device)];
  return {own.reads, own.uploads, own.messages};
}

void count(int device, Wait wait) {
  static const bool is_traced = std::getenv("FAKE_DEVICE_TRACE") != nullptr;
  AtomicCounts& own = counts[static_cast<size_t>(device)];
  ++(wait == Wait::kRead ? own.reads : wait == Wait::kUpload ? own.uploads : own.messages);
  if (!is_traced) return;
  constexpr std::array<const char*, 3> kNames{"read", "upload", "message"};
  std::cerr << "fake device " << device << ": " << kNames[static_cast<size_t>(wait)] << "\n"
            << c10::get_backtrace(/*frames_to_skip=*/1, /*maximum_number_of_frames=*/40) << "\n";
}

int current_device() {
  return current;
}

void set_current_device(int device) {
  TORCH_CHECK(device >= 0 && device < kMaxDevices, "fake device: there is no device ", device);
  current = device;
}

void register_device() {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::register_privateuse1_backend("fake");
    c10::SetAllocator(c10::kPrivateUse1, &allocator());
    c10::impl::registerDeviceGuard(c10::kPrivateUse1, new Guard);  // libtorch keeps it
    static Hooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
    at::globalContext().lazyInitDevice(c10::kPrivateUse1);
  });
}

}  // namespace cleave::fake_device
