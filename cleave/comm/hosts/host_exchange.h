#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "cleave/base/dtype.h"
#include "cleave/base/error.h"

namespace cleave::inline comm {

/// Some bytes of an exchange's buffer.
struct ByteRange {
  int64_t begin = 0, bytes = 0;
  bool operator==(const ByteRange&) const = default;
};

/// Moves bytes between the members of one lane: one member of each host. This is all that a network
/// between hosts must do; agreement, failures and timeouts stay with the job's connections.
class HostExchange {
 public:
  virtual ~HostExchange() = default;
  HostExchange() = default;
  HostExchange(const HostExchange&) = delete;
  HostExchange& operator=(const HostExchange&) = delete;

  /// Every buffer has at least this many bytes.
  static constexpr int64_t kBufferBytes = 1 << 20;

  /// Where to write what the next exchange sends. Each exchange changes the buffer.
  [[nodiscard]] virtual std::byte* buffer() = 0;
  /// Sends the range to[h] of buffer() to host h, and receives the range from[h] of that host's
  /// buffer; own entries are ignored. All hosts call it in the same order, with matching ranges.
  /// Throws Error(kTimeout) or Error(kPeer) as a collective does.
  virtual void exchange(std::span<const ByteRange> to, std::span<const ByteRange> from) = 0;
  /// Adds the first `bytes` of buffer() of all hosts, fp32 or fp64, in place and in an order that
  /// may differ from run to run; buffer() stays the same. All hosts call it in the same order. Only
  /// for HostLinks::fast_sums. Throws what exchange() throws.
  virtual void sum(int64_t /*bytes*/, DType /*dtype*/) {
    CLEAVE_BUG("a sum by a network between hosts that only moves bytes");
  }
  /// The buffer of a host at the last exchange; only the bytes that it sent to this host are valid,
  /// and for this host itself all that it wrote. Valid until the next exchange.
  [[nodiscard]] virtual const std::byte* received(int host) const = 0;
};

}  // namespace cleave::inline comm
