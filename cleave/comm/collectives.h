#pragma once
#include <cstdint>
#include <span>

#include "cleave/comm/blocks.h"
#include "cleave/comm/exchange.h"

namespace cleave {

// The collectives over an Exchange, between its begin() and end(), two ways. Staged: every byte
// passes through the members' payloads, in pieces; between processes, and for small messages.
// Direct: members read and write each other's memory; among rank threads, for large messages.

/// Memory of this rank that a collective reads and writes; `in` may be `out`.
struct Buffers {
  const std::byte* in;
  std::byte* out;
};

/// What an all-to-all moves, in bytes: [member] of this rank.
struct Traffic {
  std::span<const int64_t> send, recv;
};

/// Between processes: data passes through the job page, a buffer at a time.
void staged_all_reduce(Exchange& exchange, const Operation& operation, const Buffers& buffers);
void staged_all_gather(Exchange& exchange, const Blocks& blocks, const Buffers& buffers);
void staged_reduce_scatter(Exchange& exchange, const Operation& operation, const Blocks& blocks,
                           const Buffers& buffers);
void staged_broadcast(Exchange& exchange, int root, std::span<std::byte> data);
void staged_all_to_all(Exchange& exchange, const Traffic& traffic, const Buffers& buffers);

/// The same moves between rank threads: peers' memory is read and written in place.
void direct_all_reduce(Exchange& exchange, const Operation& operation);
void direct_all_gather(Exchange& exchange, const Blocks& blocks, const Buffers& buffers);
void direct_reduce_scatter(Exchange& exchange, const Operation& operation, const Blocks& blocks,
                           const Buffers& buffers);
void direct_broadcast(Exchange& exchange, int root, std::span<std::byte> data);
void direct_all_to_all(Exchange& exchange, const Traffic& traffic, const Buffers& buffers);

/// The first meeting of an all-to-all: every member learns who sends how much to whom. Throws
/// Error(kDesync) on all members when two disagree. Returns [from][to] bytes.
std::vector<int64_t> meet_all_to_all(Exchange& exchange, const Traffic& traffic);

}  // namespace cleave
