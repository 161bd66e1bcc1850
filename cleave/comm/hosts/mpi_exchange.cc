#include "cleave/comm/hosts/mpi_exchange.h"

#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "cleave/base/str.h"
#include "cleave/comm/diagnostics/flight_log.h"
#include "cleave/comm/diagnostics/watchdog.h"

namespace cleave::inline comm {
namespace {

using Clock = std::chrono::steady_clock;
using Memory = std::vector<std::unique_ptr<std::byte[]>>;

// Polls without a sleep between them. The later ones sleep, so that other threads get the core.
constexpr int kQuickPolls = 200;
constexpr std::chrono::microseconds kPollPeriod{20};
// A gap of this length between two polls means that this rank was suspended.
constexpr std::chrono::milliseconds kFrozen{500};

/// Keeps the memory of messages that are still in flight after a failure: MPI may access it until
/// the process ends.
void keep_for_ever(Memory memory) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<Memory>();
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(memory));
}

}  // namespace

MpiExchange::MpiExchange(std::shared_ptr<RankEndpoint> job, Mpi& mpi, std::vector<int> ranks,
                         int host, int tag, std::optional<int> sums_at)
    : job_(std::move(job)),
      mpi_(mpi),
      ranks_(std::move(ranks)),
      host_(host),
      tag_(tag),
      sums_at_(sums_at) {
  // Not initialized: pages that no exchange uses take no memory.
  for (size_t i = 0; i <= ranks_.size(); ++i) {
    buffers_.push_back(std::make_unique_for_overwrite<std::byte[]>(kBufferBytes));
  }
}

template <class Start>
void MpiExchange::run(const Start& start) {
  const auto messages = mpi_.make_messages();
  try {
    start(*messages);
    wait(*messages);
  } catch (...) {
    keep_for_ever(std::move(buffers_));
    throw;
  }
}

void MpiExchange::exchange(std::span<const ByteRange> to, std::span<const ByteRange> from) {
  run([&](MpiMessages& messages) {
    for (size_t host = 0; host < ranks_.size(); ++host) {
      const auto& [begin, bytes] = from[host];
      if (static_cast<int>(host) == host_ || bytes == 0) continue;
      messages.receive({buffers_[host].get() + begin, static_cast<size_t>(bytes)}, ranks_[host],
                       tag_);
    }
    for (size_t host = 0; host < ranks_.size(); ++host) {
      const auto& [begin, bytes] = to[host];
      if (static_cast<int>(host) == host_ || bytes == 0) continue;
      messages.send({buffer() + begin, static_cast<size_t>(bytes)}, ranks_[host], tag_);
    }
  });
  ++count_;
}

void MpiExchange::sum(int64_t bytes, DType dtype) {
  run([&](MpiMessages& messages) {
    messages.sum({buffer(), static_cast<size_t>(bytes)}, dtype, sums_at_.value());
  });
}

void MpiExchange::wait(MpiMessages& messages) {
  const std::chrono::duration<double> timeout(job_->options().timeout_s);
  auto began = Clock::now(), last = began;
  for (int num_polls = 0; !messages.are_done(); ++num_polls) {
    job_->check();
    const auto now = Clock::now();
    const auto gap = now - std::exchange(last, now);
    if (gap > kFrozen) began += gap;
    if (now - began >= timeout) fail_at_timeout(messages);
    if (num_polls < kQuickPolls) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPollPeriod);
    }
  }
}

void MpiExchange::fail_at_timeout(MpiMessages& messages) const {
  const std::vector<int> ranks = messages.awaited_ranks();
  const SharedSegment& segment = job_->segment();
  std::string text = str("timeout of ", job_->options().timeout_s, " s: rank ", job_->rank(),
                         " waits ", describe_place(segment, job_->beside(), job_->rank()),
                         " over MPI for ", ranks.size() == 1 ? "rank " : "ranks ",
                         ranks.empty() ? list_text(ranks_) : list_text(ranks));
  if (ranks.size() == 1) {
    text += str("; rank ", ranks[0], " is ", describe_place(segment, job_->beside(), ranks[0]),
                describe_step(segment, ranks[0]));
  }
  job_->fail(Error(Code::kTimeout, text + save_flight_log(*job_, text)));
}

}  // namespace cleave::inline comm
