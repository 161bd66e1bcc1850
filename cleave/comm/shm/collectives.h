#pragma once
#include <cstdint>
#include <span>

#include "cleave/base/dtype.h"
#include "cleave/comm/api/group.h"
#include "cleave/comm/shm/blocks.h"
#include "cleave/comm/shm/collective_sync.h"

namespace cleave::inline comm {

struct HostLinks;

// The algorithms of the collectives. They run between begin() and end() of a CollectiveSync.

/// Memory of this rank that a collective reads and writes; `in` may be `out`.
struct Buffers {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
};

/// The bytes that this rank sends to and receives from each member in an all-to-all.
struct Traffic {
  std::span<const int64_t> send, recv;
};

/// Data passes through the shared segment, one payload at a time.
void staged_all_reduce(CollectiveSync& sync, const Operation& operation, const Buffers& buffers);
void two_shot_all_reduce(CollectiveSync& sync, const Operation& operation, const Buffers& buffers);
void staged_all_gather(CollectiveSync& sync, const Blocks& blocks, const Buffers& buffers);
void staged_reduce_scatter(CollectiveSync& sync, const Operation& operation, const Blocks& blocks,
                           const Buffers& buffers);
void staged_broadcast(CollectiveSync& sync, int root, std::span<std::byte> data);

/// The same collectives between rank threads, which access each other's memory in place.
void direct_all_reduce(CollectiveSync& sync, const Operation& operation);
void direct_all_gather(CollectiveSync& sync, const Blocks& blocks, const Buffers& buffers);
void direct_reduce_scatter(CollectiveSync& sync, const Operation& operation, const Blocks& blocks,
                           const Buffers& buffers);
void direct_broadcast(CollectiveSync& sync, int root, std::span<std::byte> data);

/// Chooses its algorithm after the members have exchanged their sizes. With `links`, members of one
/// host exchange their data in its memory. Throws Error(kDesync) on all members if two disagree
/// about a size.
void run_all_to_all(CollectiveSync& sync, const Traffic& traffic, const Buffers& buffers,
                    HostLinks* links);

/// Only exchanges and checks the sizes of an all-to-all. Throws like run_all_to_all().
void agree_on_all_to_all(CollectiveSync& sync, const Traffic& traffic);

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

}  // namespace cleave::inline comm
