#pragma once
#include <functional>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include "cleave/comm/api/world.h"
#include "cleave/mesh/mesh.h"

namespace cleave::test {

/// Runs `body` on rank threads. A rank that waits for another for 60 s fails the test. Each rank
/// computes with one thread: several teams of spinning threads make tests on a busy machine many
/// times slower.
inline void on_world(int num_ranks, const std::function<void(World&)>& body) {
  run_ranks(
      num_ranks,
      [&](World& world) {
        at::get_num_threads();  // set_num_threads has no effect in a thread before this call
        at::set_num_threads(1);
        body(world);
      },
      RankOptions{.timeout_s = 60, .flight_log_folder = ""});
}

/// on_world(), with one axis "tp".
inline void on_ranks(int tp, const std::function<void(const Axis&)>& body) {
  on_world(tp, [&](World& world) { body(Mesh::build(world, {{"tp", tp}})["tp"]); });
}

/// Standard normal numbers in fp64, the same in every call with the same seed and on every thread.
inline at::Tensor numbers(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::dtype(at::kDouble));
}

/// Whole numbers from -9 to 9 in fp64: their sums and products are exact.
inline at::Tensor whole_numbers(at::IntArrayRef shape, uint64_t seed) {
  return at::randint(-9, 10, shape, at::detail::createCPUGenerator(seed), at::dtype(at::kDouble));
}

/// Ids in [0, limit).
inline at::Tensor ids(at::IntArrayRef shape, int64_t limit, uint64_t seed) {
  return at::randint(0, limit, shape, at::detail::createCPUGenerator(seed), at::dtype(at::kLong));
}

/// A new leaf with the values of `t`, to collect a gradient.
inline at::Tensor leaf_of(const at::Tensor& t) {
  return t.detach().clone().requires_grad_();
}

}  // namespace cleave::test
