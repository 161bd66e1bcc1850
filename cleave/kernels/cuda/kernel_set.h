#pragma once
#include <utility>

#include "cleave/kernels/cuda/choice_kernels.h"
#include "cleave/kernels/cuda/decode_kernels.h"
#include "cleave/kernels/cuda/elementwise_kernels.h"
#include "cleave/kernels/cuda/list_kernels.h"
#include "cleave/kernels/cuda/norm_kernels.h"
#include "cleave/kernels/cuda/random_kernels.h"
#include "cleave/kernels/cuda/sample_kernels.h"
#include "cleave/kernels/cuda/softmax_kernels.h"

namespace cleave::inline kernels {

/// The kernels, launched by launch(kernel, grid, arguments...): CudaLaunch of kernels.cu on GPUs,
/// and in tests FiberLaunch on the CPU.
template <class Launch>
class KernelSet : public DeviceKernels {
 public:
  /// Launches by a copy of `launch`.
  explicit KernelSet(const Launch& launch = Launch()) : launch_(launch) {}

  void dropout(const DropoutJob& job) const override {
    launch<DropoutKernel>(grid_of_quads(job.count), job);
  }
  void initial_values(const InitialJob& job) const override {
    launch<InitialKernel>(grid_of_quads(job.count), job);
  }
  void sums_of_squares(std::span<const SquaresOf> tensors, double* parts,
                       double* sums) const override {
    for_lists(tensors, [&](const TensorList<SquaresOf>& list) {
      const int64_t blocks = list.first_block[list.num_tensors];
      const auto grid = [](int64_t count) {
        return Grid{.blocks = count, .threads = kMostThreads, .shared_bytes = kOverBlockBytes};
      };
      launch_(SquaresKernel(), grid(blocks), list, parts);
      launch_(SumPartsKernel(), grid(list.num_tensors), list, static_cast<const double*>(parts),
              sums);
      parts += blocks;
      sums += list.num_tensors;
    });
  }
  void adam(std::span<const AdamTensor> tensors, const AdamRule& rule,
            const float* scale) const override {
    for_lists(tensors, [&](const TensorList<AdamTensor>& list) {
      launch_(AdamKernel(), {.blocks = list.first_block[list.num_tensors], .threads = kMostThreads},
              list, AdamNumbers(rule), scale);
    });
  }
  void softmax_sums(const LogitsJob& job, int64_t rows) const override {
    launch<SoftmaxSumsKernel>(grid_of_rows(rows, job.width), job);
  }
  void softmax_gradient(const LogitsGradientJob& job, int64_t rows) const override {
    launch<SoftmaxGradientKernel>(grid_of_rows(rows, job.width), job);
  }
  void rms_norm(const RmsNormJob& job, int64_t rows) const override {
    launch<RmsNormKernel>(grid_of_rows(rows, job.width), job);
  }
  void rms_norm_backward(const RmsNormJob& job, int64_t rows, float* parts) const override {
    launch_norm_backward<RmsNormBackwardKernel>(1, job, rows, parts);
  }
  void layer_norm(const LayerNormJob& job, int64_t rows) const override {
    launch<LayerNormKernel>(grid_of_rows(rows, job.width), job);
  }
  void layer_norm_backward(const LayerNormJob& job, int64_t rows, float* parts) const override {
    launch_norm_backward<LayerNormBackwardKernel>(2, job, rows, parts);
  }
  void rotary(const RotaryJob& job) const override {
    launch<RotaryKernel>(grid_of_rotary(job), job);
  }
  void gate(const GateJob& job, int64_t count) const override {
    launch<GateKernel>(grid_of_quads(count), job, count);
  }
  void gate_backward(const GateJob& job, int64_t count) const override {
    launch<GateBackwardKernel>(grid_of_quads(count), job, count);
  }
  void gelu(const GeluJob& job, int64_t count) const override {
    launch<GeluKernel>(grid_of_quads(count), job, count);
  }
  void gelu_backward(const GeluJob& job, int64_t count) const override {
    launch<GeluBackwardKernel>(grid_of_quads(count), job, count);
  }
  void append_token(const AppendTokenJob& job) const override {
    launch<AppendTokenKernel>(
        {.blocks = job.batch * (job.heads + 2 * job.kv_heads), .threads = kWarp}, job);
  }
  void decode_attention(const DecodeAttentionJob& job) const override {
    launch<DecodeAttentionKernel>(grid_of_decode(job), job);
    if (job.num_parts == 1) return;
    launch<SumDecodePartsKernel>(grid_of_rows(job.batch * job.heads, job.width), job);
  }
  void few_rows(const DeviceFewRowsJob& job) const override {
    const Grid grid = grid_of_columns(job.out);
    job.rows == 1 ? launch<OneRowKernel>(grid, job) : launch<SomeRowsKernel>(grid, job);
  }
  void best_tokens(const BestTokenJob& job) const override {
    launch<BestOfPartKernel>({.blocks = job.rows * job.num_parts,
                              .threads = kMostThreads,
                              .shared_bytes = kOverBlockBytes},
                             job);
    launch_(BestTokenKernel(),
            {.blocks = job.rows, .threads = kWarp, .shared_bytes = kOverBlockBytes}, job);
  }
  void sample_tokens(const SampleJob& job) const override {
    const auto grid = [&](int64_t blocks, int64_t bytes) {
      return Grid{
          .blocks = job.rows * blocks, .threads = kListed, .shared_bytes = kOverBlockBytes + bytes};
    };
    constexpr auto kKey = static_cast<int64_t>(sizeof(uint64_t));
    int64_t num_lists = parts_of(job.width, kSamplePart);
    uint64_t *list = job.lists[0], *other = job.lists[1];
    launch<SamplePartKernel>(grid(num_lists, kSamplePart * kKey), job, list);
    while (list != nullptr && num_lists > 1) {
      const int64_t results = parts_of(num_lists, kMergedLists);
      launch_(MergeListsKernel(), grid(results, kMergedLists * kKey * kListed),
              static_cast<const uint64_t*>(list), num_lists, other);
      std::swap(list, other);
      num_lists = results;
    }
    launch<SampleTokenKernel>(grid(1, 2 * kKey * kListed), job, static_cast<const uint64_t*>(list));
  }

 private:
  /// The kernel of the job's type.
  template <template <class> class Kernel, class Job, class... Arguments>
  void launch(const Grid& grid, const Job& job, const Arguments&... arguments) const {
    job.is_bf16 ? launch_(Kernel<uint16_t>(), grid, job, arguments...)
                : launch_(Kernel<float>(), grid, job, arguments...);
  }
  /// A norm's backward with `num_sums` sums over rows.
  template <template <class> class Kernel, class Job>
  void launch_norm_backward(int64_t num_sums, const Job& job, int64_t rows, float* parts) const {
    const Grid grid = grid_of_norm_parts(rows, job.width, num_sums);
    launch<Kernel>(grid, job, rows, parts, grid.shared_bytes > kOverBlockBytes);
  }

  Launch launch_;
};

}  // namespace cleave::inline kernels
