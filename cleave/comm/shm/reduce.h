#pragma once
#include <cstdint>
#include <span>

#include "cleave/base/dtype.h"
#include "cleave/comm/api/group.h"

namespace cleave {

/// Whether sums and maxima of this dtype are defined: fp32, fp64, bf16, fp16, int64, int32.
bool can_reduce(DType dtype);

/// Every out[k][i] = in[0][i] op in[1][i] op ..., in this order, i < count.
///
/// bf16 and fp16 are accumulated in fp32 and rounded once; integers wrap; a maximum with NaN is
/// NaN. An output may be one of the inputs. Requires at least one input and can_reduce(dtype).
void reduce(std::span<const void* const> in, std::span<void* const> out, int64_t count, DType dtype,
            ReduceOp op);

/// The dtype in which elements are accumulated: fp32 for bf16 and fp16, otherwise their own.
DType accumulator_of(DType dtype);

/// One part of a reduction whose inputs are in several places: the accumulators pass from one place
/// to the next.
struct ReductionPart {
  const void* before = nullptr;  ///< accumulators of all inputs before these; nullptr: none
  bool is_last = false;          ///< `out` gets the result; otherwise it gets accumulators
};

/// reduce() in parts: the last of several calls, one after the other in the order of the inputs,
/// has the bits of one call with all inputs. `out` must be no input.
void reduce_part(std::span<const void* const> in, const ReductionPart& part, void* out,
                 int64_t count, DType dtype, ReduceOp op);

}  // namespace cleave
