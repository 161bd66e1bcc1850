#include "cleave/mesh/c10d_group.h"

#include <numeric>

#include "cleave/comm/shm/shm_world.h"
#include "cleave/mesh/scalar_type.h"
#include "tests/support/thrown.h"
#include "tests/support/transport_contract.h"

namespace cleave::c10d_group_test {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// Set while a fake below runs; all memory then counts as host memory.
thread_local bool is_inside = false;

class Inside {
 public:
  Inside() : before_(std::exchange(is_inside, true)) {}
  ~Inside() { is_inside = before_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  bool before_;
};

/// A c10d backend that moves host memory through a group in blocks of equal size, as NCCL does.
class HostBackend : public c10d::Backend {
 public:
  explicit HostBackend(Group& group) : Backend(group.rank(), group.size()), group_(group) {}
  [[nodiscard]] const std::string getBackendName() const override {  // NOLINT(readability-const*)
    return "host";
  }

  WorkPtr allreduce(std::vector<Tensor>& data, const c10d::AllreduceOptions& options) override {
    const Inside inside;
    void* const at = data[0].mutable_data_ptr();
    const bool is_max = options.reduceOp.op_ == c10d::ReduceOp::MAX;
    group_.all_reduce(at, at, data[0].numel(), type_of(data[0]),
                      is_max ? ReduceOp::kMax : ReduceOp::kSum, call());
    return {};
  }
  WorkPtr broadcast(std::vector<Tensor>& data, const c10d::BroadcastOptions& options) override {
    const Inside inside;
    group_.broadcast(data[0].mutable_data_ptr(), data[0].numel(), type_of(data[0]),
                     static_cast<int>(options.rootRank), call());
    return {};
  }
  WorkPtr _allgather_base(Tensor& to, Tensor& from, const c10d::AllgatherOptions&) override {
    const Inside inside;
    TORCH_CHECK(to.numel() == from.numel() * getSize(), "blocks of several sizes");
    group_.all_gather(from.const_data_ptr(), to.mutable_data_ptr(), 1, equal_widths(from.numel()),
                      type_of(to), call());
    return {};
  }
  WorkPtr _reduce_scatter_base(Tensor& to, Tensor& from,
                               const c10d::ReduceScatterOptions&) override {
    const Inside inside;
    TORCH_CHECK(from.numel() == to.numel() * getSize(), "blocks of several sizes");
    group_.reduce_scatter(from.const_data_ptr(), to.mutable_data_ptr(), 1, equal_widths(to.numel()),
                          type_of(to), call());
    return {};
  }
  WorkPtr alltoall_base(Tensor& to, Tensor& from, std::vector<int64_t>& received,
                        std::vector<int64_t>& sent, const c10d::AllToAllOptions&) override {
    const Inside inside;
    group_.all_to_all(from.const_data_ptr(), sent, to.mutable_data_ptr(), received, type_of(to),
                      call());
    return {};
  }

 private:
  static DType type_of(const Tensor& t) { return dtype_of(t.scalar_type()); }
  static Call call() { return {.site = "host backend", .shape = {}}; }
  [[nodiscard]] std::vector<int64_t> equal_widths(int64_t width) const {
    return std::vector<int64_t>(static_cast<size_t>(getSize()), width);
  }
  Group& group_;
};

/// A fake device whose memory is `memory`, part of the host's; empty: all host memory.
class HostDevice : public Device {
 public:
  explicit HostDevice(std::span<const std::byte> memory = {}) : memory_(memory) {}
  [[nodiscard]] bool holds(const void* data) const override {
    if (data == nullptr || is_inside) return false;
    const auto* at = static_cast<const std::byte*>(data);
    return memory_.empty() || (at >= memory_.data() && at < memory_.data() + memory_.size());
  }
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  std::unique_ptr<DeviceGroup> connect(Group& group) override {
    return std::make_unique<C10dGroup>(c10::make_intrusive<HostBackend>(group), at::kCPU,
                                       group.name());
  }

 private:
  std::span<const std::byte> memory_;
};

void use(World& world, const std::shared_ptr<Device>& device) {
  world.use_device(device);
}

void run_on_devices(int num_ranks, const std::function<void(World&)>& body,
                    const RankOptions& options) {
  run_ranks(
      num_ranks,
      [&](World& world) {
        use(world, std::make_shared<HostDevice>());
        body(world);
      },
      options);
}

INSTANTIATE_TEST_SUITE_P(Devices, TransportContract,
                         testing::Values(Transport{"devices", run_on_devices, true}),
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

/// A backend whose all-reduce fails.
class BrokenBackend : public HostBackend {
 public:
  using HostBackend::HostBackend;
  WorkPtr allreduce(std::vector<Tensor>&, const c10d::AllreduceOptions&) override {
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
