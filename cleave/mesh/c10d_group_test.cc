#include "cleave/mesh/c10d_group.h"

#include <algorithm>
#include <thread>

#include "cleave/comm/shm/shm_world.h"
#include "cleave/mesh/axis.h"
#include "cleave/mesh/staged_group.h"
#include "tests/support/host_device.h"
#include "tests/support/thrown.h"
#include "tests/support/transport_contract.h"

namespace cleave::c10d_group_test {
namespace {

using test::HostBackend;
using test::HostDevice;
using test::LateDevice;

/// A fake device whose groups stage their data in its host_memory(); all other memory is its own.
class StagingDevice : public HostDevice {
 public:
  [[nodiscard]] bool holds(const void* data) const override {
    const auto* at = static_cast<const std::byte*>(data);
    return data != nullptr && std::none_of(host_.begin(), host_.end(), [&](const auto& memory) {
             return at >= memory.first.get() && at <= memory.first.get() + memory.second;
           });
  }
  [[nodiscard]] std::shared_ptr<std::byte[]> host_memory(size_t bytes) override {
    return host_.emplace_back(HostDevice::host_memory(bytes), bytes).first;
  }
  std::unique_ptr<DeviceGroup> connect(Group& group) override { return staged_group(*this, group); }

 private:
  // Kept to the end: the addresses of freed memory may be those of device memory later.
  std::vector<std::pair<std::shared_ptr<std::byte[]>, size_t>> host_;
};

void use(World& world, const std::shared_ptr<Device>& device) {
  world.use_device(device);
}

template <class SomeDevice>
void run_on(int num_ranks, const std::function<void(World&)>& body, const RankOptions& options) {
  run_ranks(
      num_ranks,
      [&](World& world) {
        use(world, std::make_shared<SomeDevice>());
        body(world);
      },
      options);
}

INSTANTIATE_TEST_SUITE_P(Devices, TransportContract,
                         testing::Values(Transport{"devices", run_on<HostDevice>, true},
                                         Transport{"late_devices", run_on<LateDevice>, true},
                                         Transport{"staged", run_on<StagingDevice>, true}),
                         [](const auto& test) { return test.param.name; });

TEST(GroupStore, KeySetByRankZero_IsReadByTheOthers) {
  run_ranks(3, [](World& world) {
    const auto group = world.group({0, 1, 2}, "tp");
    GroupStore store(*group);
    for (const std::string key : {"0", "1"}) {
      const std::vector<uint8_t> id(128, key == "0" ? 7 : 9);
      if (group->rank() == 0) {
        store.set(key, id);
      } else {
        EXPECT_EQ(store.get(key), id);
      }
    }
    EXPECT_FALSE(store.check({"0"}));
    EXPECT_EQ(test::thrown_by([&] { store.add("0", 1); }).code(), Code::kBug);
  });
}

// As the watchdog of ProcessGroupNCCL does on its own thread after a failure.
TEST(GroupStore, KeySetAfterClose_IsNotSent) {
  run_ranks(2, [](World& world) {
    const auto group = world.group({0, 1}, "tp");
    GroupStore store(*group);
    store.close();
    if (world.rank() == 0) {
      std::thread([&] { store.set("exception_dump", std::vector<uint8_t>(4)); }).join();
    } else {
      EXPECT_TRUE(store.get("exception_dump").empty());
    }
    group->barrier({.site = "next", .shape = {}});  // a desync if the key was sent
  });
}

TEST(GroupStore, AnotherKeyOnOneRank_IsADesync) {
  const Error error = test::thrown_by([] {
    run_ranks(2, [](World& world) {
      const auto group = world.group({0, 1}, "tp");
      GroupStore store(*group);
      group->rank() == 0 ? store.set("0", std::vector<uint8_t>(4)) : (void)store.get("1");
    });
  });
  EXPECT_EQ(error.code(), Code::kDesync);
  EXPECT_NE(std::string(error.what()).find("at c10d key 1"), std::string::npos) << error.what();
}

TEST(DeviceGroup, MemoryOnTheDeviceOfOneRankAlone_IsADesyncThatSaysSo) {
  const Error error = test::thrown_by([] {
    run_ranks(2, [](World& world) {
      std::vector<float> values(4), elsewhere(4);
      use(world, std::make_shared<HostDevice>(std::as_bytes(std::span(elsewhere))));
      const auto group = world.group({0, 1}, "tp");
      // Connect both ranks first, so that the operation itself is compared.
      group->broadcast(elsewhere.data(), 4, DType::kF32, 0, {.site = "connect", .shape = {}});
      float* const data = world.rank() == 0 ? values.data() : elsewhere.data();
      group->all_reduce(data, data, 4, DType::kF32, ReduceOp::kSum, {.site = "sum", .shape = {}});
    });
  });
  EXPECT_EQ(error.code(), Code::kDesync);
  const std::string text = error.what();
  EXPECT_NE(text.find("on the device, shape"), std::string::npos) << text;
  EXPECT_EQ(text.find("on the device"), text.rfind("on the device")) << "of one rank: " << text;
}

TEST(DeviceGroup, HostAndDeviceMemory_UseTheirOwnTransports) {
  run_ranks(3, [](World& world) {
    std::vector<double> device_values(5, world.rank()), values(5, 10 * world.rank());
    use(world, std::make_shared<HostDevice>(std::as_bytes(std::span(device_values))));
    const auto group = world.group({0, 1, 2}, "tp");
    const Call call{.site = "test", .shape = {}};
    for (auto* t : {&device_values, &values}) {
      group->all_reduce(t->data(), t->data(), 5, DType::kF64, ReduceOp::kSum, call);
    }
    EXPECT_EQ(device_values, std::vector<double>(5, 3));
    EXPECT_EQ(values, std::vector<double>(5, 30));
    // From device memory to a rank that receives into host memory.
    if (world.rank() == 0) group->send(device_values.data(), 5, DType::kF64, 1, call);
    if (world.rank() == 1) group->recv(values.data(), 5, DType::kF64, 0, call);
    EXPECT_EQ(values, std::vector<double>(5, world.rank() == 1 ? 3 : 30));
  });
}

/// A device that counts the copies between it and host memory.
class CountingDevice : public LateDevice {
 public:
  void copy(void* to, const void* from, size_t bytes) override {
    ++num_copies;
    LateDevice::copy(to, from, bytes);
  }
  int num_copies = 0;
};

// Every rank sends to all others before it receives. The messages of neighbours stay on the device,
// in the order of each pair, although their buffers change as soon as they are sent.
TEST(DeviceGroup, MessagesOfNeighbours_StayOnTheDevice) {
  constexpr int kNumRanks = 4, kNumMessages = 3;
  run_ranks(kNumRanks, [](World& world) {
    const auto device = std::make_shared<CountingDevice>();
    use(world, device);
    const Axis axis(world.group({0, 1, 2, 3}, "pp"));
    axis.connect_messages();
    axis.connect_messages();  // does nothing
    const int self = world.rank();
    const auto value = [](int from, int to, int i) { return 100. * from + 10 * to + i; };
    for (int i = 0; i < kNumMessages; ++i) {
      for (int to = 0; to < kNumRanks; ++to) {
        if (to == self) continue;
        Tensor t = at::full({i, 2}, value(self, to, i), at::kDouble);  // the first is empty
        axis.send(t, to, "test");
        t.fill_(-1);
      }
    }
    for (int from = 0; from < kNumRanks; ++from) {
      if (from == self) continue;
      for (int i = 0; i < kNumMessages; ++i) {
        const Tensor have = axis.recv(from, {i, 2}, at::kDouble, "test");
        EXPECT_TRUE(have.equal(at::full({i, 2}, value(from, self, i), at::kDouble))) << have;
      }
    }
    // With the one rank that is no neighbour; an empty message has no memory.
    EXPECT_EQ(device->num_copies, 2 * (kNumMessages - 1));
  });
}

TEST(DeviceGroup, MessageOfTheDevice_IntoHostMemory_IsADesyncThatSaysSo) {
  const Error error = test::thrown_by([] {
    run_ranks(2, [](World& world) {
      std::vector<float> elsewhere(4), values(4);
      use(world, std::make_shared<HostDevice>(std::as_bytes(std::span(elsewhere))));
      const auto group = world.group({0, 1}, "pp");
      group->async()->connect_messages();
      const Call call{.site = "test", .shape = {}};
      // From host memory into that of the device: a copy.
      if (world.rank() == 0) group->send(values.data(), 4, DType::kF32, 1, call);
      if (world.rank() == 1) group->recv(elsewhere.data(), 4, DType::kF32, 0, call);
      if (world.rank() == 0) group->send(elsewhere.data(), 4, DType::kF32, 1, call);
      if (world.rank() == 1) group->recv(values.data(), 4, DType::kF32, 0, call);
    });
  });
  EXPECT_EQ(error.code(), Code::kDesync);
  EXPECT_NE(std::string(error.what()).find("on the device"), std::string::npos) << error.what();
}

TEST(DeviceGroup, CanBeRecorded_IfTheDeviceCan) {
  run_ranks(2, [](World& world) {
    std::vector<float> values(4);
    EXPECT_TRUE(Axis(world.group({0, 1}, "host")).can_record());
    use(world, std::make_shared<HostDevice>(std::as_bytes(std::span(values))));
    const Axis axis(world.group({0, 1}, "tp"));
    EXPECT_FALSE(axis.can_record());  // is not connected
    axis.group()->broadcast(values.data(), 4, DType::kF32, 0, {.site = "connect", .shape = {}});
    EXPECT_FALSE(axis.can_record());  // goes through host memory
    EXPECT_TRUE(Axis().can_record());
  });
}

/// A backend whose all-reduce fails.
class BrokenBackend : public HostBackend {
 public:
  using HostBackend::HostBackend;
  test::C10dWorkPtr allreduce(std::vector<Tensor>&, const c10d::AllreduceOptions&) override {
    TORCH_CHECK(false, "connection reset");
  }
};

TEST(C10dGroup, FailureOfTheBackend_IsAnErrorThatNamesTheAxis) {
  run_ranks(1, [](World& world) {
    const auto group = world.group({0}, "tp");
    C10dGroup broken(c10::make_intrusive<BrokenBackend>(*group), at::kCPU, "tp");
    float x = 1;
    const Error error =
        test::thrown_by([&] { broken.all_reduce(&x, &x, 1, DType::kF32, ReduceOp::kSum); });
    EXPECT_EQ(error.code(), Code::kPeer);
    EXPECT_EQ(std::string(error.what()), "axis tp: host failed: connection reset");
  });
}

}  // namespace
}  // namespace cleave::c10d_group_test
