#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "cleave/base/dtype.h"
#include "cleave/comm/api/group.h"
#include "cleave/comm/shm/segment_layout.h"

namespace cleave {

/// One collective or message as its caller asks for it. What it does not use keeps its default, so
/// that equal calls have equal headers.
struct Operation {
  Op op = Op::kNone;
  DType dtype = DType::kU8;
  int64_t count = 0;  ///< elements; rows where there are widths
  ReduceOp reduce_op = ReduceOp::kSum;
  int root = -1;
  std::span<const int64_t> widths;
  Call call;
  bool on_device{};  ///< the data lies on the ranks' devices; peers' must too
};

/// "all_reduce", "send", ...
std::string_view name(Op op);

/// "sum" or "max".
std::string_view name(ReduceOp op);

/// The words that peers compare.
CallHeader make_header(const Operation& operation, uint32_t group, uint64_t sequence);

/// A hash of all of it: different headers have different ones, but for one pair in 2^64.
uint64_t digest(const CallHeader& header);

/// The sizes and the call site, cut to what has room.
void fill_note(CallNote& note, const Operation& operation);

/// "all_reduce 412 (sum, fp32, count 16, shape [2, 8], at model.layers.3.mlp)".
std::string describe(const CallHeader& header, const CallNote& note);

/// Whether a byte from another process is a dtype.
bool has_dtype(uint8_t value);

/// Whether two ranks ask for the same.
bool is_same_call(const CallHeader& a, const CallHeader& b);

}  // namespace cleave
