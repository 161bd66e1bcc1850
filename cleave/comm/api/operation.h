#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "cleave/base/dtype.h"
#include "cleave/comm/api/group.h"
#include "cleave/comm/shm/segment_layout.h"

namespace cleave::inline comm {

/// One collective or message as its caller requests it. Unused fields keep their defaults, so that
/// equal calls have equal headers.
struct Operation {
  Op op = Op::kNone;
  DType dtype = DType::kU8;
  int64_t count = 0;  ///< elements; rows if `widths` is set
  ReduceOp reduce_op = ReduceOp::kSum;
  int root = -1;
  std::span<const int64_t> widths;
  Call call;
  bool on_device{};  ///< the data is in device memory; it must be on all ranks
};

/// "all_reduce", "send", ...
std::string_view name(Op op);

/// "sum" or "max".
std::string_view name(ReduceOp op);

/// The header that peers compare.
CallHeader make_header(const Operation& operation, uint32_t group, uint64_t sequence);

/// A 64-bit hash of the whole header.
uint64_t digest(const CallHeader& header);

/// Writes the sizes and the call site to `note`, truncated to its capacity.
void fill_note(CallNote& note, const Operation& operation);

/// "all_reduce 412 (sum, fp32, count 16, shape [2, 8], at model.layers.3.mlp)".
std::string describe(const CallHeader& header, const CallNote& note);

/// Whether a byte from another process is a valid dtype.
bool has_dtype(uint8_t value);

/// Whether two ranks call the same operation.
bool is_same_call(const CallHeader& a, const CallHeader& b);

}  // namespace cleave::inline comm
