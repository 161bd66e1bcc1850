#pragma once
#include <array>
#include <compare>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>

#include <ATen/core/Tensor.h>

namespace cleave::inline torch_internals {

/// The sizes of `batch` matrix products: [rows, inner] times [inner, columns]. A matrix is
/// transposed if its columns, not its rows, are contiguous.
struct MatrixWork {
  int64_t batch = 1;
  int64_t rows = 0, inner = 0, columns = 0;
  bool is_first_transposed = false, is_second_transposed = false;
  at::ScalarType type = at::kFloat;
  [[nodiscard]] double flops() const;
  // clang-tidy 14 takes the default for a null pointer.
  friend auto operator<=>(const MatrixWork&,
                          const MatrixWork&) = default;  // NOLINT(modernize-use-nullptr)
};

/// The sizes of an attention that stores no scores.
struct AttentionWork {
  int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, width = 0;
  int64_t window = 0;  ///< 0: none
  bool is_causal = false, is_backward = false;
  bool has_dropout = false;  ///< of probabilities
  at::ScalarType type = at::kFloat;
  friend auto operator<=>(const AttentionWork&,
                          const AttentionWork&) = default;  // NOLINT(modernize-use-nullptr)
};

/// Bytes by reuse distance, which is how many other bytes were used since these were: element i has
/// the bytes of distances from 2^i to 2^(i+1).
using BytesByDistance = std::array<double, 48>;

/// What a thread computes, independent of a machine.
struct OpWork {
  std::map<MatrixWork, double> products;      ///< how often each occurs
  std::map<AttentionWork, double> attention;  ///< the same
  /// Bytes of both matrices of all products of these sizes. Missing sizes: the distance is large.
  std::map<MatrixWork, BytesByDistance> factors;
  /// What passes over memory move (read, write, and read into the cache before a write). Writes
  /// count at the largest distance that their pass reads.
  BytesByDistance moved{};
  double random_numbers = 0;  ///< of dropout
  double operations = 0;      ///< calls of libtorch and nodes of backward, each with its overhead

  /// Adds `factor` times the other's numbers.
  OpWork& add(const OpWork& other, double factor = 1);
  /// Adds passes over data that is no longer in the caches.
  void add_far_pass(double bytes) { moved.back() += bytes; }
  /// All bytes of `moved`.
  [[nodiscard]] double moved_bytes() const;
};

/// Counts the work of this thread on the meta device while it is alive, and what Cleave's kernels
/// report below. On other devices libtorch's calls count only as calls. A second one is
/// Error(kBug).
class WorkCounter {
 public:
  WorkCounter();
  ~WorkCounter();
  WorkCounter(const WorkCounter&) = delete;
  WorkCounter& operator=(const WorkCounter&) = delete;

  /// The work since the start or the last call.
  OpWork take();

  struct State;

 private:
  std::unique_ptr<State> state_;
};

/// Reports what a kernel of Cleave does to this thread's WorkCounter, if it has one.
void count_attention(const AttentionWork& work);
/// A pass that reads and writes whole tensors; undefined ones do not count.
void count_pass(std::initializer_list<const at::Tensor*> read,
                std::initializer_list<const at::Tensor*> written);
void count_random_numbers(int64_t count);

}  // namespace cleave::inline torch_internals
