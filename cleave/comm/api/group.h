#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/base/dtype.h"
#include "cleave/base/error.h"

namespace cleave::inline comm {

/// How elements of several ranks are combined.
enum class ReduceOp : uint8_t { kSum = 1, kMax };

/// Describes one collective. It must be the same on every rank of the group: peers compare it
/// before they touch data, and a difference is Error(kDesync) on all ranks.
struct Call {
  std::string_view site;           ///< who calls, e.g. "model.layers.3.mlp.down_proj output"
  std::span<const int64_t> shape;  ///< logical (whole) shape, the same on every rank; may be empty
};

class AsyncGroup;

/// One rank's handle on a group of ranks, over raw contiguous memory.
///
/// Collectives are called by all members in the same order. Sums add in rank order (fp32
/// accumulation for bf16 and fp16), on every transport and however the ranks lie on hosts; so
/// results are bit-identical on every rank and in every run.
/// `in` may equal `out` but must not overlap it otherwise. Counts are elements. A group of one rank
/// copies `in` to `out`.
///
/// Throws Error(kDesync) on a mismatch, Error(kTimeout) naming who is missing, Error(kPeer) with
/// the root cause when another rank has failed.
class Group {
 public:
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }  ///< axis name, e.g. "tp"
  [[nodiscard]] int rank() const { return rank_; }                 ///< 0 <= rank < size
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] const std::vector<int>& ranks() const {
    return ranks_;
  }  ///< world ranks, ascending

  /// This group if it can also run collectives asynchronously, else null.
  [[nodiscard]] virtual AsyncGroup* async() { return nullptr; }

  /// Returns when all members have called it.
  virtual void barrier(const Call& call) = 0;

  /// out[i] = sum or max over ranks of in[i], i < count.
  virtual void all_reduce(const void* in, void* out, int64_t count, DType dtype, ReduceOp op,
                          const Call& call) = 0;

  /// Concatenates columns: rank r passes [rows, widths[r]], every rank gets [rows, sum(widths)].
  virtual void all_gather(const void* in, void* out, int64_t rows, std::span<const int64_t> widths,
                          DType dtype, const Call& call) = 0;

  /// Every rank passes [rows, sum(widths)]; rank r gets the sum of its columns, [rows, widths[r]].
  virtual void reduce_scatter(const void* in, void* out, int64_t rows,
                              std::span<const int64_t> widths, DType dtype, const Call& call) = 0;

  /// Copies `data` of `root` to all ranks.
  virtual void broadcast(void* data, int64_t count, DType dtype, int root, const Call& call) = 0;

  /// send_counts[r] elements to rank r, recv_counts[r] from rank r, both packed in rank order.
  virtual void all_to_all(const void* in, std::span<const int64_t> send_counts, void* out,
                          std::span<const int64_t> recv_counts, DType dtype, const Call& call) = 0;

  /// One message between two ranks; both sides must agree on count and dtype. Returns when the
  /// buffer may be reused.
  virtual void send(const void* data, int64_t count, DType dtype, int to, const Call& call) = 0;
  virtual void recv(void* data, int64_t count, DType dtype, int from, const Call& call) = 0;

 protected:
  Group(std::string name, int rank, std::vector<int> ranks)
      : name_(std::move(name)), rank_(rank), ranks_(std::move(ranks)) {}

 private:
  std::string name_;
  int rank_;
  std::vector<int> ranks_;
};

}  // namespace cleave::inline comm
