#pragma once
#include <cstdint>
#include <span>

#include "cleave/kernels/cpu/adam.h"
#include "cleave/kernels/cpu/kernel_job.h"
#include "cleave/kernels/cpu/rows.h"

namespace cleave::inline kernels {

// The jobs hold raw pointers to device memory: make them where a kernel is launched. Kernels of
// rows.h and adam.h have their jobs there.

/// Where a rank's elements lie in a whole tensor [outer, whole, inner], of whose middle dim it has
/// some ranges. Local elements are in memory order.
struct ShardPlace {
  static constexpr int kMostRanges = 8;
  /// A range of the middle dim.
  struct Piece {
    int64_t begin = 0;  // in the whole dim
    int64_t place = 0;  // among those that the rank has
  };
  uint64_t first = 0;  ///< the number in the stream of the whole tensor's first element
  int64_t whole = 1, inner = 1;
  int64_t held = 1;  ///< indices of the middle dim that the rank has
  int num_pieces = 1;
  Piece pieces[kMostRanges]{};
};

/// out = x mask, where the mask is `scale` for elements whose number of the stream (key, step) is
/// at least p, and 0 for the others. Numbers are those of fill_uniform().
struct DropoutJob {
  bool is_bf16 = false;
  int64_t count = 0;
  const void* x = nullptr;  ///< null: `out` becomes the mask itself
  void* out = nullptr;
  ShardPlace place{};
  uint64_t key = 0, step = 0;
  float p = 0, scale = 1;
  [[no_unique_address]] NotStored not_stored{};
};

/// out = `factor` times the numbers of fill_normal(), or of 2 u - 1 with u of fill_uniform() at
/// step 0.
struct InitialJob {
  bool is_bf16 = false, is_normal = true;
  int64_t count = 0;
  void* out = nullptr;
  ShardPlace place{};
  uint64_t key = 0;
  double factor = 1;
  [[no_unique_address]] NotStored not_stored{};
};

/// A tensor whose squares are summed. Like the jobs, it must not be stored; but nvcc 13 computes
/// wrong addresses in arrays of structs with a NotStored member, and kernels read arrays of it.
struct SquaresOf {
  SquaresOf() = default;
  SquaresOf(const SquaresOf&) = delete;
  SquaresOf& operator=(const SquaresOf&) = delete;
  const void* data = nullptr;
  int64_t count = 0;
  bool is_bf16 = false;
};

/// A tensor that Adam steps (AdamRun). It cannot be stored, like SquaresOf.
struct AdamTensor {
  AdamTensor() = default;
  AdamTensor(const AdamTensor&) = delete;
  AdamTensor& operator=(const AdamTensor&) = delete;
  float* weight = nullptr;
  const void* gradient = nullptr;  ///< fp32, or bf16 with is_bf16_gradient
  float *exp_avg = nullptr, *exp_avg_sq = nullptr;
  uint16_t* bf16_weight = nullptr;  ///< if set, also receives the new weights, as bf16
  int64_t count = 0;
  bool is_bf16_gradient = false;
};

/// Elements of a tensor that one block sums or steps.
inline constexpr int64_t kListPart = 1 << 14;

/// Rows whose part of a norm's weight gradient one block sums.
inline constexpr int64_t kNormPart = 32;

/// Rotates the two halves (a, b) of every head: (a cos - b sin, b cos + a sin); `direction` -1 is
/// the inverse rotation.
struct RotaryJob {
  /// [batch, heads, tokens, 2 half] with stride 1 in the last dim; the other strides in elements.
  struct Strides {
    int64_t batch = 0, head = 0, token = 0;
  };
  bool is_bf16 = false;
  float direction = 1;
  int64_t batch = 0, heads = 0, tokens = 0, half = 0;
  const void* x = nullptr;
  void* y = nullptr;
  Strides of_x{}, of_y{};
  const void *cos = nullptr, *sin = nullptr;  ///< [tokens, half], or [batch, tokens, half]
  bool has_batch_angles = false;
  [[no_unique_address]] NotStored not_stored{};
};

/// The new token of each of `batch` sequences: rotates the first 2 half dims of its queries and
/// keys, and appends its keys and values to the cache.
struct AppendTokenJob {
  /// Strides of a tensor [batch, heads, width], in elements; the last dim has stride 1.
  struct Strides {
    int64_t batch = 0, head = 0;
  };
  bool is_bf16 = false;
  int64_t batch = 0, heads = 0, kv_heads = 0, width = 0, half = 0, capacity = 0;
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  Strides of_q{}, of_k{}, of_v{};
  void* rotated_q = nullptr;                  ///< [batch, heads, width]
  void *keys = nullptr, *values = nullptr;    ///< [batch, kv_heads, capacity, width]
  const void *cos = nullptr, *sin = nullptr;  ///< [positions, half]
  const int64_t* positions = nullptr;         ///< [batch]
  const int64_t* num_keys = nullptr;          ///< [1], with the new token
  [[no_unique_address]] NotStored not_stored{};
};

/// Attention of one query for each head of each sequence to the cached keys.
struct DecodeAttentionJob {
  bool is_bf16 = false;
  int64_t batch = 0, heads = 0, kv_heads = 0, width = 0, capacity = 0;
  int64_t group = 1, skipped = 0;  ///< query head h has KV head (h + skipped) / group
  int64_t window = 0;              ///< only the last keys; 0: all
  int64_t num_parts = 1;           ///< parts of the keys, each of one block
  float scale = 1;                 ///< of the scores
  float soft_cap = 0;              ///< cap tanh(score / cap); 0: none
  const void *q = nullptr, *keys = nullptr, *values = nullptr;  ///< as in AppendTokenJob
  void* out = nullptr;                                          ///< [batch, heads, width]
  float* parts = nullptr;  ///< [batch, heads, num_parts, width + 2], if there are several
  const int64_t* num_keys = nullptr;   ///< [1]
  const int64_t* first_key = nullptr;  ///< [batch]; null: 0
  [[no_unique_address]] NotStored not_stored{};
};
/// Largest width of a head that the kernel supports.
inline constexpr int64_t kMostDecodeWidth = 512;

/// y = x weight^T + bias for at most kMostDeviceRows rows. `in` must be a multiple of 16 bytes, and
/// x and weight aligned to 16 bytes.
struct DeviceFewRowsJob {
  bool is_bf16 = false;
  /// The weight is not written by the two kernels launched last, so it may be read before they have
  /// ended.
  bool is_weight_ready = false;
  int64_t rows = 0, in = 0, out = 0;
  const void *x = nullptr, *weight = nullptr;  ///< [rows, in], [out, in]
  const void* bias = nullptr;                  ///< [out], or null
  void* y = nullptr;                           ///< [rows, out]
  [[no_unique_address]] NotStored not_stored{};
};
inline constexpr int kMostDeviceRows = 4;

/// The best token of a part of a row of logits.
struct BestOfPart {
  int64_t id = 0;
  float largest = 0, sum = 0;  ///< the logit; and the sum of exp(logit - largest)
};

/// The count of numbers that a device returns for a chosen token: the token, its logit, the largest
/// logit of the row, and the sum of exp(logit - largest) over the row.
inline constexpr int kChoiceNumbers = 4;

/// The best token of each row of logits [rows, width]: the largest logit, of equal ones the lowest
/// id. A row that is not all finite may have any id of the vocabulary.
struct BestTokenJob {
  bool is_bf16 = false;
  int64_t rows = 0, width = 0;
  int64_t num_parts = 1;  ///< parts of a row, each of one block
  const void* logits = nullptr;
  BestOfPart* parts = nullptr;  ///< [rows, num_parts]
  int64_t* ids = nullptr;       ///< [rows], receives the tokens
  double* results = nullptr;    ///< [rows, kChoiceNumbers]
  int64_t* num_keys = nullptr;  ///< [1], of AppendTokenJob; grows by the token
  [[no_unique_address]] NotStored not_stored{};
};

/// The number of logits of a block, of tokens in a list of the best, and of lists a block merges.
inline constexpr int64_t kSamplePart = 2048;
inline constexpr int kListed = 256;
inline constexpr int kMergedLists = 16;

/// What a part of a row of logits has.
struct PartOfLogits {
  double mass = 0;             ///< the sum of exp((logit - largest) / temperature)
  float largest = 0, sum = 0;  ///< the logit; and the sum of exp(logit - largest)
};

/// Samples a token of each row of logits [rows, width], in fp64: the first id at which the
/// cumulative probability exceeds the row's number in [0, 1), among the tokens that top_k and top_p
/// keep. `width` is at most kListed kSamplePart, and top_k less than kListed or at least `width`.
struct SampleJob {
  bool is_bf16 = false;
  int64_t rows = 0, width = 0;
  float temperature = 1;
  int64_t top_k = 0;  ///< tokens with at least the score of the k-th are kept; 0: all
  double top_p = 1;   ///< the best tokens are kept whose probabilities add up to p; 1: all
  const void* logits = nullptr;
  const double* uniforms = nullptr;  ///< [rows]
  PartOfLogits* parts = nullptr;     ///< [rows, ceil(width / kSamplePart)]
  /// Two of [rows, ceil(width / kSamplePart), kListed] with top_k or top_p, else null.
  uint64_t* lists[2] = {nullptr, nullptr};
  int64_t* ids = nullptr;  ///< [rows], receives the tokens
  /// [rows, kChoiceNumbers]. The token is -1 if more than kListed would have to be compared.
  double* results = nullptr;
  int64_t* num_keys = nullptr;  ///< [1], as in BestTokenJob
  [[no_unique_address]] NotStored not_stored{};
};

/// Cleave's kernels for a kind of device other than the CPU, on the calling thread's device and
/// stream. Results are in the jobs' types, arithmetic in fp32 unless noted.
class DeviceKernels {
 public:
  DeviceKernels() = default;
  virtual ~DeviceKernels() = default;
  DeviceKernels(const DeviceKernels&) = delete;
  DeviceKernels& operator=(const DeviceKernels&) = delete;

  /// x mask, or the mask.
  virtual void dropout(const DropoutJob& job) const = 0;
  /// Numbers of a weight's stream.
  virtual void initial_values(const InitialJob& job) const = 0;
  /// sums[i] = the sum of the squares of tensors[i], in fp64, in a fixed order. `sums` and `parts`
  /// are device memory; `parts` has a number for every kListPart elements of each tensor, or part
  /// of them.
  virtual void sums_of_squares(std::span<const SquaresOf> tensors, double* parts,
                               double* sums) const = 0;
  /// AdamRule's step, except that `scale` in device memory is the gradients' scale.
  virtual void adam(std::span<const AdamTensor> tensors, const AdamRule& rule,
                    const float* scale) const = 0;

  // Over `rows` rows, or `count` elements, of the jobs of rows.h.

  /// softmax_sums_rows().
  virtual void softmax_sums(const LogitsJob& job, int64_t rows) const = 0;
  /// softmax_gradient_rows().
  virtual void softmax_gradient(const LogitsGradientJob& job, int64_t rows) const = 0;
  /// rms_norm_rows().
  virtual void rms_norm(const RmsNormJob& job, int64_t rows) const = 0;
  /// rms_norm_backward_rows(). `parts` [ceil(rows / kNormPart), width] receives sums of the
  /// weight's gradient.
  virtual void rms_norm_backward(const RmsNormJob& job, int64_t rows, float* parts) const = 0;
  /// layer_norm_rows().
  virtual void layer_norm(const LayerNormJob& job, int64_t rows) const = 0;
  /// layer_norm_backward_rows(). `parts` [ceil(rows / kNormPart), 2, width]: of the weight's and of
  /// the bias's gradient.
  virtual void layer_norm_backward(const LayerNormJob& job, int64_t rows, float* parts) const = 0;
  /// Rotates all heads.
  virtual void rotary(const RotaryJob& job) const = 0;
  /// gate_range().
  virtual void gate(const GateJob& job, int64_t count) const = 0;
  /// gate_backward_range().
  virtual void gate_backward(const GateJob& job, int64_t count) const = 0;
  /// gelu_range().
  virtual void gelu(const GeluJob& job, int64_t count) const = 0;
  /// gelu_backward_range().
  virtual void gelu_backward(const GeluJob& job, int64_t count) const = 0;
  /// Appends a token to each sequence.
  virtual void append_token(const AppendTokenJob& job) const = 0;
  /// Attention of the token that was appended last.
  virtual void decode_attention(const DecodeAttentionJob& job) const = 0;
  /// A product with few rows.
  virtual void few_rows(const DeviceFewRowsJob& job) const = 0;
  /// Chooses the next token of each sequence.
  virtual void best_tokens(const BestTokenJob& job) const = 0;
  /// Samples the next token of each sequence.
  virtual void sample_tokens(const SampleJob& job) const = 0;
};

}  // namespace cleave::inline kernels
