#include "cleave/comm/hosts/tcp_exchange.h"

#include <utility>

namespace cleave::inline comm {

TcpExchange::TcpExchange(std::shared_ptr<RankEndpoint> job, uint32_t group, int host)
    : sync_(std::move(job), group, host) {
  if (sync_.payload_bytes() < kBufferBytes) {
    CLEAVE_BUG("an exchange between hosts with payloads of ", sync_.payload_bytes(), " bytes");
  }
}

// Frames carry their sizes, so `from` is not needed.
void TcpExchange::exchange(std::span<const ByteRange> to, std::span<const ByteRange> /*from*/) {
  for (int host = 0; host < sync_.num_members(); ++host) {
    const ByteRange& range = to[static_cast<size_t>(host)];
    sync_.declare_send(host,
                       {static_cast<uint64_t>(range.begin), static_cast<uint64_t>(range.bytes)});
  }
  sync_.barrier();
}

}  // namespace cleave::inline comm
