#pragma once
#include <cstdint>
#include <span>

#include "cleave/comm/shm/blocks.h"
#include "cleave/comm/shm/collective_sync.h"

namespace cleave {

// The collectives over an CollectiveSync, between its begin() and end(), in up to three ways.

/// How a collective moves its data.
enum class Algorithm {
  kStaged,  ///< every byte passes through the members' payloads in pieces; all sum all
  kParted,  ///< the same, but each member sums one part of a piece and gives the sum to all
  kDirect,  ///< rank threads read and write each other's memory
};

/// The way of a collective whose members each have `bytes` to read: the one place that chooses.
///
/// Staged needs one meeting a piece, and each member reads what all have; parted needs two, and
/// each member reads twice what one has. Direct needs two in all and copies nothing beforehand.
Algorithm choose_algorithm(const CollectiveSync& sync, Op op, int64_t bytes);

/// Memory of this rank that a collective reads and writes; `in` may be `out`.
struct Buffers {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
};

/// What an all-to-all moves, in bytes: [member] of this rank.
struct Traffic {
  std::span<const int64_t> send, recv;
};

/// Data passes through the shared segment, a payload at a time.
void staged_all_reduce(CollectiveSync& sync, const Operation& operation, const Buffers& buffers);
void parted_all_reduce(CollectiveSync& sync, const Operation& operation, const Buffers& buffers);
void staged_all_gather(CollectiveSync& sync, const Blocks& blocks, const Buffers& buffers);
void staged_reduce_scatter(CollectiveSync& sync, const Operation& operation, const Blocks& blocks,
                           const Buffers& buffers);
void staged_broadcast(CollectiveSync& sync, int root, std::span<std::byte> data);

/// The same moves between rank threads: peers' memory is read and written in place.
void direct_all_reduce(CollectiveSync& sync, const Operation& operation);
void direct_all_gather(CollectiveSync& sync, const Blocks& blocks, const Buffers& buffers);
void direct_reduce_scatter(CollectiveSync& sync, const Operation& operation, const Blocks& blocks,
                           const Buffers& buffers);
void direct_broadcast(CollectiveSync& sync, int root, std::span<std::byte> data);

/// Any way, which is chosen when all know the sizes. Throws Error(kDesync) on all members when two
/// disagree about them.
void run_all_to_all(CollectiveSync& sync, const Traffic& traffic, const Buffers& buffers);

/// The meeting of an all-to-all alone: every member learns that the others agree, or throws.
void agree_on_all_to_all(CollectiveSync& sync, const Traffic& traffic);

}  // namespace cleave
