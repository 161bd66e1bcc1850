#include "tests/fake_device/runtime.h"

#include <cstring>

#include "cleave/mesh/c10d_group.h"
#include "tests/fake_device/backend.h"
#include "tests/fake_device/device.h"
#include "tests/fake_device/memory.h"
#include "tests/fake_device/stream.h"

namespace cleave::fake_device {
namespace {

class FakeGroup : public C10dGroup {
 public:
  FakeGroup(Group& group, GroupStore&& store, int index)
      : C10dGroup(make_backend(store, group.rank(), group.size(), index),
                  {at::kPrivateUse1, static_cast<at::DeviceIndex>(index)}, group.name()),
        index_(index) {}

 protected:
  BackendPtr connect_pair(Group& group, int peer, int rank) override {
    GroupStore store(group, peer, rank);
    return make_pair(store, rank, index_);
  }

 private:
  int index_;
};

class RankDevice : public Device {
 public:
  explicit RankDevice(int index) : index_(index) {}

  [[nodiscard]] bool holds(const void* data) const override { return fake_device::holds(data); }
  void copy(void* to, const void* from, size_t bytes) override {
    count(index_, Wait::kMessage);
    run_until(last_event(index_, StreamId::kDefault));
    std::memcpy(kernel_address(to), kernel_address(from), bytes);
  }
  std::unique_ptr<DeviceGroup> connect(Group& group) override {
    return std::make_unique<FakeGroup>(group, GroupStore(group), index_);
  }

 private:
  int index_;
};

class Runtime : public Cuda {
 public:
  [[nodiscard]] at::DeviceType type() const override { return at::kPrivateUse1; }
  [[nodiscard]] int num_gpus() const override {
    register_device();
    return kMaxDevices;
  }
  [[nodiscard]] std::string describe(int gpu) const override { return str("fake device ", gpu); }
  [[nodiscard]] std::shared_ptr<Device> take(int gpu, double /*timeout_s*/) const override {
    register_device();
    set_current_device(gpu);
    return std::make_shared<RankDevice>(gpu);
  }
};

}  // namespace

std::unique_ptr<Cuda> make_runtime() {
  return std::make_unique<Runtime>();
}

}  // namespace cleave::fake_device
