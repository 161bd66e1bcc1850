#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace cleave::fake_device {

/// A c10d backend between fake devices of one host, threads or processes. It takes blocks of equal
/// size, as NCCL does. A collective reads and writes its memory only when somebody waits for its
/// Work. Sums are in rank order. Collective over the group: rank 0 sets a key of the store, which
/// the others get.
///
/// A rank that never joins a collective makes the others wait forever.
c10::intrusive_ptr<c10d::Backend> make_backend(c10d::Store& store, int rank, int size, int device);

/// A c10d backend for messages from rank 0 to rank 1, like make_backend(). send() copies
/// the message; the receiver's memory is written only when somebody waits for the Work.
c10::intrusive_ptr<c10d::Backend> make_pair(c10d::Store& store, int rank, int device);

}  // namespace cleave::fake_device
