#pragma once
#include <cstdint>
#include <span>

#include "cleave/comm/blocks.h"
#include "cleave/comm/exchange.h"

namespace cleave {

// The collectives over an Exchange, between its begin() and end(), in up to three ways.

/// How a collective moves its data.
enum class Way {
  kStaged,  ///< every byte passes through the members' payloads in pieces; all sum all
  kParted,  ///< the same, but each member sums one part of a piece and gives the sum to all
  kDirect,  ///< rank threads read and write each other's memory
};

/// The way of a collective whose members each have `bytes` to read: the one place that chooses.
///
/// Staged needs one meeting a piece, and each member reads what all have; parted needs two, and
/// each member reads twice what one has. Direct needs two in all and copies nothing beforehand.
Way choose_way(const Exchange& exchange, Op op, int64_t bytes);

/// Memory of this rank that a collective reads and writes; `in` may be `out`.
struct Buffers {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
};

/// What an all-to-all moves, in bytes: [member] of this rank.
struct Traffic {
  std::span<const int64_t> send, recv;
};

/// Data passes through the job page, a payload at a time.
void staged_all_reduce(Exchange& exchange, const Operation& operation, const Buffers& buffers);
void parted_all_reduce(Exchange& exchange, const Operation& operation, const Buffers& buffers);
void staged_all_gather(Exchange& exchange, const Blocks& blocks, const Buffers& buffers);
void staged_reduce_scatter(Exchange& exchange, const Operation& operation, const Blocks& blocks,
                           const Buffers& buffers);
void staged_broadcast(Exchange& exchange, int root, std::span<std::byte> data);

/// The same moves between rank threads: peers' memory is read and written in place.
void direct_all_reduce(Exchange& exchange, const Operation& operation);
void direct_all_gather(Exchange& exchange, const Blocks& blocks, const Buffers& buffers);
void direct_reduce_scatter(Exchange& exchange, const Operation& operation, const Blocks& blocks,
                           const Buffers& buffers);
void direct_broadcast(Exchange& exchange, int root, std::span<std::byte> data);

/// Any way, which is chosen when all know the sizes. Throws Error(kDesync) on all members when two
/// disagree about them.
void any_way_all_to_all(Exchange& exchange, const Traffic& traffic, const Buffers& buffers);

/// The meeting of an all-to-all alone: every member learns that the others agree, or throws.
void meet_all_to_all(Exchange& exchange, const Traffic& traffic);

}  // namespace cleave
