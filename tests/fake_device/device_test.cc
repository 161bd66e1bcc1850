// What the fake device finds: without these, the other tests of this folder would prove nothing.
#include "tests/fake_device/device.h"

#include <cstdlib>

#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>

#include "cleave/mesh/c10d_group.h"
#include "cleave/torch_internals/device_memory.h"
#include "tests/fake_device/backend.h"
#include "tests/fake_device/on_fake_device.h"
#include "tests/support/ranks.h"
#include "tests/support/train_grid.h"

namespace cleave::fake_device_test {
namespace {

const fake_device::RegisterFirst registered;
const at::Device kDevice(at::kPrivateUse1, 0);

Tensor on_device(const Tensor& t) {
  return t.to(kDevice);
}

/// Waits for device 0 during `work`.
template <class Work>
fake_device::Counts during(const Work& work) {
  const auto before = fake_device::counts_of(0);
  work();
  return fake_device::counts_of(0) - before;
}

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(FakeDevice, LinearLayer_HasTheCpusGradients) {
  const Tensor x = test::numbers({3, 4}, 1), w = test::numbers({5, 4}, 2);
  const auto gradient = [&](const Tensor& in, const Tensor& weight) {
    const Tensor leaf = weight.detach().clone().requires_grad_();
    const Tensor y = at::linear(in, leaf).tanh();
    (y * y).sum().backward();
    return leaf.grad();
  };
  const Tensor have = gradient(on_device(x), on_device(w));
  EXPECT_EQ(have.device(), kDevice);
  EXPECT_TRUE(at::allclose(have.to(at::kCPU), gradient(x, w), 1e-14, 1e-14));
}

TEST(FakeDevice, MemoryThatTheHostReads_EndsTheProcess) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const Tensor t = on_device(test::numbers({4}, 1));
  EXPECT_DEATH(std::exit(static_cast<int>(*t.const_data_ptr<double>())),
               "the host reads or writes");
}

TEST(FakeDevice, TensorsOfSeveralDevices_AreRefused) {
  const Tensor host = test::numbers({3, 4}, 1), here = on_device(host);
  const Tensor index = at::tensor({0, 2}, at::kLong);
  EXPECT_NE(message_of([&] { (void)here.index_select(0, index); }), "");
  EXPECT_NE(message_of([&] { (void)(here + host); }), "");
  EXPECT_NE(message_of([&] { (void)here.index({index}); }), "");
  EXPECT_NE(message_of([&] { (void)host.matmul(here.t()); }), "");
  EXPECT_EQ(message_of([&] { (void)(here * at::scalar_tensor(2.0, at::kDouble)); }), "");
}

TEST(FakeDevice, WaitsOfTheHost_AreCounted) {
  const Tensor host = test::numbers({4}, 1), here = on_device(host);
  EXPECT_EQ(during([&] { (void)here.sum().item<double>(); }).reads, 1);
  EXPECT_EQ(during([&] { (void)here.to(at::kCPU); }).reads, 1);
  EXPECT_EQ(during([&] { (void)at::equal(here, here); }).reads, 1);
  EXPECT_EQ(during([&] { (void)here.masked_select(here.gt(0)); }).reads, 1);
  EXPECT_EQ(during([&] { (void)host.to(kDevice); }).uploads, 1);
  EXPECT_EQ(during([&] { (void)host.to(kDevice, /*non_blocking=*/true); }).waits(), 0);
  EXPECT_EQ(during([&] { (void)here.mul(2).softmax(0).sum(); }).waits(), 0);
}

TEST(FakeDevice, CopyToPinnedMemory_EndsWhenTheStreamIsWaitedFor) {
  const Tensor here = on_device(at::ones({2}, at::kDouble));
  const Tensor host = here.to(at::kCPU, /*non_blocking=*/true);
  EXPECT_TRUE(host.isnan().all().item<bool>());
  c10::impl::getDeviceGuardImpl(at::kPrivateUse1)->synchronizeDevice(0);
  EXPECT_TRUE(at::equal(host, at::ones({2}, at::kDouble)));
}

TEST(FakeDevice, Collective_MovesDataWhenItsWorkIsWaitedFor) {
  test::on_world(2, [](World& world) {
    const at::Device device = fake_device::take_device(world);
    const auto group = world.group({0, 1}, "pair");
    GroupStore store(*group);
    const auto backend = fake_device::make_backend(store, world.rank(), 2, world.rank());
    std::vector<Tensor> data{at::full({3}, world.rank() + 1.0, at::device(device))};
    const auto work = backend->allreduce(data);
    EXPECT_TRUE(at::equal(data[0].to(at::kCPU), at::full({3}, world.rank() + 1.0)));
    EXPECT_FALSE(work->isCompleted());
    work->wait();
    EXPECT_TRUE(at::equal(data[0].to(at::kCPU), at::full({3}, 3.0)));
  });
}

TEST(FakeDevice, MemoryFreedBeforeItsCollective_EndsTheProcess) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto free_early = [] {
    test::on_world(1, [](World& world) {
      const at::Device device = fake_device::take_device(world);
      const auto group = world.group({0}, "one");
      GroupStore store(*group);
      const auto backend = fake_device::make_backend(store, 0, 1, 0);
      Tensor memory = at::ones({3}, at::device(device));
      std::vector<Tensor> data{at::for_blob(memory.mutable_data_ptr(), {3})
                                   .options(memory.options())
                                   .target_device(device)
                                   .make_tensor()};
      const auto work = backend->allreduce(data);
      memory.reset();
      work->wait();
    });
  };
  EXPECT_DEATH(free_early(), "memory is freed that a stream still uses");
}

// Blocks are multiples of 256 bytes.
TEST(FakeDevice, DeviceMemory_CountsTheBytesOfTensors) {
  fake_device::set_current_device(1);
  const at::TensorOptions options = at::device(at::Device(at::kPrivateUse1, 1)).dtype(at::kByte);
  DeviceMemory memory(at::kPrivateUse1);
  const at::Tensor kept = at::empty({1024}, options);
  memory.reset_peak();
  const int64_t before = memory.peak(), available = memory.available();
  {
    const at::Tensor large = at::empty({1 << 20}, options), small = at::empty({1}, options);
    EXPECT_EQ(memory.available(), available - (1 << 20) - 256);
  }
  EXPECT_EQ(memory.available(), available);
  EXPECT_EQ(memory.peak(), before + (1 << 20) + 256);
  memory.reset_peak();
  EXPECT_EQ(memory.peak(), before);
  fake_device::set_current_device(0);
}

}  // namespace
}  // namespace cleave::fake_device_test
