#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <poll.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <vector>

#include "cleave/base/log.h"
#include "cleave/comm/api/rank_thread.h"
#include "cleave/comm/launch/failure.h"
#include "cleave/comm/shm/shm_world.h"

namespace cleave::inline comm {
namespace {

using Failures = std::vector<std::optional<Error>>;  // by rank
using Clock = std::chrono::steady_clock;

constexpr std::chrono::duration<double> kPollPeriod{0.05};
constexpr double kGraceS = 2;  // to leave a wait and unwind after a timeout

/// The rank threads that have not ended.
class RunningRanks {
 public:
  explicit RunningRanks(int num_ranks) : ranks_(static_cast<size_t>(num_ranks)) {
    std::iota(ranks_.begin(), ranks_.end(), 0);
  }

  void end(int rank) {
    const std::lock_guard lock(mutex_);
    std::erase(ranks_, rank);
    ended_.notify_all();
  }

  /// Waits until all ranks have ended. After a failure of the job it waits only for a while, and
  /// then returns the ranks that still run: for kGraceS after a timeout, which has already waited
  /// for them, and for `timeout_s` after any other failure.
  std::vector<int> wait(const SharedSegment& segment, double timeout_s) {
    std::optional<Clock::time_point> failed;
    std::unique_lock lock(mutex_);
    while (!ended_.wait_for(lock, kPollPeriod, [&] { return ranks_.empty(); })) {
      const std::optional<Abort> cause = segment.aborted();
      if (!cause) continue;
      if (!failed) failed = Clock::now();
      const double limit_s = cause->code == Code::kTimeout ? kGraceS : timeout_s;
      if (Clock::now() - *failed > std::chrono::duration<double>(limit_s)) break;
    }
    return ranks_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<int> ranks_;
};

/// Ends the process, as a launcher would: a thread cannot end another thread.
[[noreturn]] void end_process(const Abort& cause, const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (const int rank : ranks) text += str(' ', rank);
  text += ranks.size() == 1 ? " does" : " do";
  // Do not block on a stderr that nobody reads.
  pollfd stderr_end{STDERR_FILENO, POLLOUT, 0};
  constexpr int kLongestMs = 100;
  if (poll(&stderr_end, 1, kLongestMs) > 0) {
    log_error(cause.text);
    log_error(text, " not stop, so the process ends");
  }
  _exit(static_cast<int>(cause.code));
}

void run_rank(const std::shared_ptr<SharedSegment>& segment, int rank, const RankOptions& options,
              const std::function<void(World&)>& body, std::optional<Error>& failure) {
  const RankThread is_rank;
  ShmWorld world(segment, rank, options);
  try {
    body(world);
  } catch (...) {
    // Recorded before `world` is destroyed, which would look like an orderly exit.
    failure = as_error(std::current_exception());
    world.abort(*failure);
  }
}

/// Throws the failure recorded in the shared segment, with the full text that its rank threw.
void rethrow_first(const SharedSegment& segment, const Failures& failures) {
  const std::optional<Abort> first = segment.aborted();
  if (!first) return;
  const auto rank = static_cast<size_t>(first->rank);
  if (first->rank >= 0 && failures[rank] && failures[rank]->code() == first->code &&
      std::string_view(failures[rank]->what()).substr(0, first->text.size()) == first->text) {
    throw Error(*failures[rank]);
  }
  throw Error(first->code, first->text);
}

}  // namespace

void run_ranks(int num_ranks, const std::function<void(World&)>& body, const RankOptions& options) {
  CLEAVE_CHECK(options.timeout_s > 0, Code::kUsage, "timeout=", options.timeout_s,
               " s; it must be positive");
  report_uncaught_exceptions();
  const std::shared_ptr<SharedSegment> segment = SharedSegment::create_private(num_ranks);
  Failures failures(static_cast<size_t>(num_ranks));
  std::vector<std::thread> threads;
  RunningRanks running(num_ranks);
  try {
    for (int rank = 0; rank < num_ranks; ++rank) {
      threads.emplace_back([&, rank] {
        run_rank(segment, rank, options, body, failures[static_cast<size_t>(rank)]);
        running.end(rank);
      });
    }
  } catch (const std::system_error& error) {
    segment->abort(
        {.rank = static_cast<int>(threads.size()),
         .code = Code::kMemory,
         .group = "",
         .text = str("rank thread ", threads.size(), " could not start: ", error.what())});
    for (int rank = static_cast<int>(threads.size()); rank < num_ranks; ++rank) running.end(rank);
  }
  const std::vector<int> left = running.wait(*segment, options.timeout_s);
  if (!left.empty()) end_process(*segment->aborted(), left);
  for (std::thread& thread : threads) thread.join();
  rethrow_first(*segment, failures);
}

}  // namespace cleave::inline comm
