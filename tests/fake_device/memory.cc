#include "tests/fake_device/memory.h"

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "tests/fake_device/device.h"
#include "tests/fake_device/stream.h"

namespace cleave::fake_device {
namespace {

constexpr size_t kDeviceBytes = size_t{4} << 30;
constexpr size_t kAllBytes = kDeviceBytes * kMaxDevices;
constexpr size_t kAlignment = 256;
constexpr int kPoison = 0xFF;

struct Mappings {
  std::byte* device = nullptr;  // no access
  std::byte* kernel = nullptr;  // the same pages
};

Mappings mappings;
struct sigaction previous_handler;  // of SIGSEGV

/// Says what happened, then lets the access fail again under the previous handler.
void on_fault(int /*signal*/, siginfo_t* info, void* /*context*/) {
  if (holds(info->si_addr)) {
    constexpr char kText[] = "fake device: the host reads or writes device memory\n";
    (void)!write(STDERR_FILENO, kText, sizeof kText - 1);
  }
  sigaction(SIGSEGV, &previous_handler, nullptr);
}

Mappings map_memory() {
  const int file = memfd_create("fake_device", MFD_CLOEXEC);
  TORCH_CHECK(file >= 0 && ftruncate(file, kAllBytes) == 0, "fake device: no memory file");
  const auto map = [&](int protection) {
    void* at = mmap(nullptr, kAllBytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
    TORCH_CHECK(at != MAP_FAILED, "fake device: its memory cannot be mapped");
    return static_cast<std::byte*>(at);
  };
  const Mappings made{.device = map(PROT_NONE), .kernel = map(PROT_READ | PROT_WRITE)};
  close(file);
  return made;
}

void require_memory() {
  static std::once_flag once;
  std::call_once(once, [] {
    mappings = map_memory();
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &previous_handler);
  });
}

/// The blocks of all devices. A block is reused only for its own size and device.
class Blocks {
 public:
  void* take(int device, size_t bytes) {
    require_memory();
    const size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    const std::scoped_lock lock(mutex_);
    auto& free = free_[{device, size}];
    std::byte* at = nullptr;
    if (!free.empty()) {
      at = free.back();
      free.pop_back();
    } else {
      auto& used = used_[static_cast<size_t>(device)];
      TORCH_CHECK_WITH(OutOfMemoryError, used + size <= kDeviceBytes, "fake device: out of memory");
      at = mappings.device + static_cast<size_t>(device) * kDeviceBytes + used;
      used += size;
    }
    sizes_[at] = size;
    stats_[static_cast<size_t>(device)].increase(size);
    std::memset(kernel_address(at), kPoison, size);
    return at;
  }

  void give_back(void* data) {
    auto* const at = static_cast<std::byte*>(data);
    const std::scoped_lock lock(mutex_);
    const auto found = sizes_.find(at);
    const size_t size = found->second;
    check_unused({at, size});
    std::memset(kernel_address(at), kPoison, size);
    free_[{device_of(at), size}].push_back(at);
    stats_[static_cast<size_t>(device_of(at))].decrease(size);
    sizes_.erase(found);
  }

  /// The bytes of a device's blocks.
  c10::CachingAllocator::Stat stat(int device) {
    const std::scoped_lock lock(mutex_);
    return stats_[static_cast<size_t>(device)];
  }
  void reset_peak(int device) {
    const std::scoped_lock lock(mutex_);
    stats_[static_cast<size_t>(device)].reset_peak();
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, size_t>, std::vector<std::byte*>> free_;  // by device and size
  std::map<std::byte*, size_t> sizes_;                              // of the taken blocks
  std::array<size_t, kMaxDevices> used_{};
  std::array<c10::CachingAllocator::Stat, kMaxDevices> stats_{};
};

Blocks& blocks() {
  static auto* const all = new Blocks;  // never destroyed: tensors may outlive static objects
  return *all;
}

struct DeviceAllocator : c10::DeviceAllocator {
  [[nodiscard]] bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {}
  void recordStream(const c10::DataPtr& /*data*/, c10::Stream /*stream*/) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0] = stats.reserved_bytes[0] = blocks().stat(device);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex /*device*/) override {}
  void resetPeakStats(c10::DeviceIndex device) override { blocks().reset_peak(device); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const auto used = static_cast<size_t>(blocks().stat(device).current);
    return {kDeviceBytes - used, kDeviceBytes};
  }
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(current_device()));
    if (bytes == 0) return {nullptr, device};
    void* const at = blocks().take(current_device(), bytes);
    return {at, at, [](void* data) { blocks().give_back(data); }, device};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(kernel_address(to), kernel_address(from), bytes);
  }
};

struct Pinned {
  std::mutex mutex;
  std::map<const std::byte*, size_t> blocks;
};

Pinned& pinned() {
  static auto* const all = new Pinned;
  return *all;
}

struct PinnedAllocator : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* const at = std::malloc(bytes + 1);
    const std::scoped_lock lock(pinned().mutex);
    pinned().blocks[static_cast<std::byte*>(at)] = bytes;
    return {at, at, &release, c10::kCPU};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void release(void* data) {
    const std::scoped_lock lock(pinned().mutex);
    pinned().blocks.erase(static_cast<std::byte*>(data));
    std::free(data);
  }
};

}  // namespace

bool holds(const void* data) {
  const auto* at = static_cast<const std::byte*>(data);
  return mappings.device != nullptr && at >= mappings.device && at < mappings.device + kAllBytes;
}

int device_of(const void* data) {
  const auto offset = static_cast<const std::byte*>(data) - mappings.device;
  return static_cast<int>(static_cast<size_t>(offset) / kDeviceBytes);
}

void* kernel_address(const void* data) {
  auto* at = static_cast<std::byte*>(const_cast<void*>(data));  // NOLINT(*-const-cast)
  return holds(data) ? mappings.kernel + (at - mappings.device) : at;
}

c10::DeviceAllocator& allocator() {
  static DeviceAllocator only;
  return only;
}

c10::Allocator& pinned_allocator() {
  static PinnedAllocator only;
  return only;
}

bool is_pinned(const void* data) {
  const std::scoped_lock lock(pinned().mutex);
  const auto* at = static_cast<const std::byte*>(data);
  auto after = pinned().blocks.upper_bound(at);
  if (after == pinned().blocks.begin()) return false;
  --after;
  return at < after->first + after->second;
}

}  // namespace cleave::fake_device
