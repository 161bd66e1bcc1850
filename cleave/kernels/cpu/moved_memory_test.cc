// FSDP frees the gathered weights after forward and gathers them for backward at another address.
// Other owners of memory may do the same. A backward function that kept an address would read freed
// memory.
//
// Oracle: the same function with inputs that do not move.
#include <cstring>
#include <functional>

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "cleave/kernels/cpu/attention.h"
#include "cleave/kernels/cpu/fused.h"
#include "cleave/kernels/cpu/gemm.h"
#include "cleave/runtime/kernel_switches.h"
#include "cleave/torch_internals/node.h"
#include "tests/support/ranks.h"

namespace cleave::moved_memory_test {
namespace {

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

struct Operation {
  std::string name;
  Function function;
  std::vector<std::vector<int64_t>> shapes;  // of its inputs
};

std::vector<Operation> operations() {
  const auto onednn = [](const auto& t) {
    set_gemm(Gemm::kOneDnn);
    Tensor y = affine(t[0], t[1], t[2]);
    set_gemm(Gemm::kMkl);
    return y;
  };
  return {
      {"rms_norm", [](const auto& t) { return fused_rms_norm(t[0], t[1], 1e-5); }, {{5, 32}, {32}}},
      {"layer_norm",
       [](const auto& t) { return fused_layer_norm(t[0], t[1], t[2], 1e-5); },
       {{5, 32}, {32}, {32}}},
      {"rms_norm of a sum",
       [](const auto& t) {
         const NormedSum y = fused_rms_norm(Terms{.a = t[0], .b = t[1]}, t[2], 1e-5, 0);
         return y.sum * y.normed;
       },
       {{5, 32}, {5, 32}, {32}}},
      {"layer_norm of a sum",
       [](const auto& t) {
         const NormedSum y = fused_layer_norm(Terms{.a = t[0], .b = t[1]}, t[2], t[3], 1e-5);
         return y.sum * y.normed;
       },
       {{5, 32}, {5, 32}, {32}, {32}}},
      {"gelu", [](const auto& t) { return fused_gelu(t[0]); }, {{5, 32}}},
      {"gate", [](const auto& t) { return fused_gate(t[0], t[1]); }, {{5, 32}, {5, 32}}},
      {"rotary",
       [](const auto& t) { return fused_rotary(t[0], t[1].detach(), t[2].detach()); },
       {{2, 3, 5, 16}, {5, 8}, {5, 8}}},
      {"attention",
       [](const auto& t) {
         return fast_attention(t[0], t[1], t[2], {.causal = true, .key_mask = {}, .kv_head = {}});
       },
       {{2, 3, 5, 16}, {2, 3, 5, 16}, {2, 3, 5, 16}}},
      {"affine by MKL",
       [](const auto& t) { return affine(t[0], t[1], t[2]); },
       {{20, 32}, {48, 32}, {48}}},
      {"affine by oneDNN", onednn, {{20, 32}, {48, 32}, {48}}},
  };
}

/// Moves `t`'s storage to other memory, as FSDP does, and fills the old memory with NaN. Returns
/// the old memory, so that a read of it gives NaN instead of a crash.
at::DataPtr move_memory(const Tensor& t) {
  c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
  const size_t num_bytes = storage->nbytes();
  at::DataPtr fresh = c10::GetCPUAllocator()->allocate(num_bytes);
  std::memcpy(fresh.get(), storage->data(), num_bytes);
  at::DataPtr old = storage->set_data_ptr(std::move(fresh));
  std::memset(old.get(), 0xFF, num_bytes);
  return old;
}

/// The gradients of the inputs, of which the one number `changed` is changed in place after
/// forward.
variable_list gradients(const Operation& operation, at::ScalarType type, bool moves,
                        std::optional<size_t> changed = {}) {
  variable_list inputs;
  for (size_t i = 0; i < operation.shapes.size(); ++i) {
    inputs.push_back(test::leaf_of(test::numbers(operation.shapes[i], i + 1).to(type)));
  }
  const Tensor y = operation.function(inputs);
  const Tensor dy = test::numbers(y.sizes(), 9).to(type);
  std::vector<at::DataPtr> old;
  if (moves) {
    for (const Tensor& t : inputs) old.push_back(move_memory(t));
  }
  if (changed) inputs[*changed].detach().add_(1);
  return torch::autograd::grad({y}, inputs, {dy}, /*retain_graph=*/false, /*create_graph=*/false,
                               /*allow_unused=*/true);
}

TEST(MovedMemory, BetweenForwardAndBackward_ChangesNoGradient) {
  for (const Operation& operation : operations()) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const variable_list want = gradients(operation, type, false);
      const variable_list got = gradients(operation, type, true);
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(got[i].defined(), want[i].defined()) << operation.name;
        if (!want[i].defined()) continue;
        EXPECT_TRUE(at::equal(got[i], want[i]))
            << operation.name << ", " << type << ", input " << i;
      }
    }
  }
}

// As by an optimizer's step. libtorch's own operations refuse it too.
TEST(ChangedMemory, BetweenForwardAndBackward_ChangesNoGradientOrIsRefused) {
  for (const Operation& operation : operations()) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const variable_list want = gradients(operation, type, false);
      size_t num_refused = 0;
      for (size_t changed = 0; changed < operation.shapes.size(); ++changed) {
        try {
          const variable_list got = gradients(operation, type, false, changed);
          for (size_t i = 0; i < want.size(); ++i) {
            EXPECT_TRUE(!want[i].defined() || at::equal(got[i], want[i]))
                << operation.name << ", " << type << ", input " << i << " of " << changed;
          }
        } catch (const std::exception& error) {
          EXPECT_THAT(error.what(), testing::ContainsRegex("in-?place|in place"));
          ++num_refused;
        }
      }
      EXPECT_GT(num_refused, 0U) << operation.name;
    }
  }
}

}  // namespace
}  // namespace cleave::moved_memory_test
