#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "cleave/comm/hosts/host_exchange.h"
#include "cleave/comm/hosts/mpi.h"
#include "cleave/comm/shm/rank_endpoint.h"

namespace cleave::inline comm {

/// The exchange over MPI. While it waits, it checks for the job's failure, because MPI waits
/// forever for a rank that has died.
class MpiExchange : public HostExchange {
 public:
  /// `ranks`: the lane's members by host, as ranks of the job, which MPI numbers in the same way.
  /// Lanes with two equal members differ in `tag`. `sums_at`: their lane in MPI, if MPI adds.
  MpiExchange(std::shared_ptr<RankEndpoint> job, Mpi& mpi, std::vector<int> ranks, int host,
              int tag, std::optional<int> sums_at = {});

  [[nodiscard]] std::byte* buffer() override { return own(count_); }
  void exchange(std::span<const ByteRange> to, std::span<const ByteRange> from) override;
  void sum(int64_t bytes, DType dtype) override;
  [[nodiscard]] const std::byte* received(int host) const override {
    return host == host_ ? own(count_ + 1) : buffers_[static_cast<size_t>(host)].get();
  }

 private:
  /// This host's two buffers, which exchanges use in turn.
  [[nodiscard]] std::byte* own(size_t count) const {
    return buffers_[count % 2 == 0 ? static_cast<size_t>(host_) : ranks_.size()].get();
  }
  /// Calls start(messages) and waits until they are done.
  template <class Start>
  void run(const Start& start);
  void wait(MpiMessages& messages);
  [[noreturn]] void fail_at_timeout(MpiMessages& messages) const;

  std::shared_ptr<RankEndpoint> job_;
  Mpi& mpi_;
  std::vector<int> ranks_;
  int host_;
  int tag_;
  std::optional<int> sums_at_;
  size_t count_ = 0;                                   // of exchanges
  std::vector<std::unique_ptr<std::byte[]>> buffers_;  // received, by host; this host's two
};

}  // namespace cleave::inline comm
