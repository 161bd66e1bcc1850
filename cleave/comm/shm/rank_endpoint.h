#pragma once
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cleave/comm/shm/call_thread.h"
#include "cleave/comm/shm/shared_segment.h"
#include "cleave/comm/net/tcp_replicator.h"
#include "cleave/comm/api/world.h"

namespace cleave {

/// What ended a rank, as an Error: an Error itself; std::bad_alloc, what libtorch says of memory,
/// and a thread that cannot start, is kMemory; what <filesystem> throws is kIo; anything else is
/// kBug with its text.
Error as_error(const std::exception_ptr& caught);

/// One rank's end of the shared segment: who it is, how long it waits, and how it fails.
class RankEndpoint {
 public:
  /// `mirror` carries what this rank does to ranks that do not share the segment.
  RankEndpoint(std::shared_ptr<SharedSegment> segment, int rank, const RankOptions& options,
          std::unique_ptr<TcpReplicator> mirror = nullptr);
  /// Tells the others that nothing more comes from this rank.
  ~RankEndpoint();
  RankEndpoint(const RankEndpoint&) = delete;
  RankEndpoint& operator=(const RankEndpoint&) = delete;

  [[nodiscard]] SharedSegment& segment() const { return *segment_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] RankSlot& slot() const { return segment_->rank(rank_); }
  [[nodiscard]] const RankOptions& options() const { return options_; }
  /// nullptr when all ranks share the segment.
  [[nodiscard]] TcpReplicator* mirror() const { return mirror_.get(); }
  /// How often the calling thread looks before its wait sleeps.
  [[nodiscard]] int num_spins() const;
  /// Chooses that anew, until all ranks have joined and said which processors they run on.
  void choose_num_spins();

  /// Throws what stopped the job when something did.
  void check() const {
    if (segment_->is_aborted()) throw_stopped();
  }

  /// Records `cause` as the first failure, with the place where this rank is; false when there is
  /// one already.
  bool abort(const Error& cause) const { return abort_for(rank_, cause); }

  /// The same for another rank, which is dead and cannot say so itself.
  bool abort_for(int rank, const Error& cause) const;

  /// Records and throws `cause`; throws the earlier failure when there is one.
  [[noreturn]] void fail(const Error& cause) const;

  /// Throws Error(kPeer) with the recorded failure, or Error(kDesync) when it was a desync, which
  /// concerns all ranks alike.
  [[noreturn]] void throw_stopped() const;

  /// Whether the process of another rank of this host has ended. Of another host TcpReplicator
  /// notices.
  [[nodiscard]] bool is_dead(int rank);

  /// Notes which thread communicates for this rank; inside a started call it is not the question.
  void note_thread() const;

  /// A thread for a group's calls beside the rank's own. It ends with end_call_threads(), not with
  /// the group: a rank that leaves by an exception tells its peers only when its groups are gone,
  /// and until then calls that wait for them cannot end.
  CallThread& make_call_thread();
  void end_call_threads();

 private:
  std::shared_ptr<SharedSegment> segment_;
  int rank_;
  RankOptions options_;
  std::unique_ptr<TcpReplicator> mirror_;
  int num_exceptions_;  // in flight when this began
  std::atomic<int> num_spins_ = 0;
  std::atomic<bool> knows_processors_ = false;  // of all ranks
  std::mutex pidfds_mutex_;
  std::vector<int> pidfds_;  // by rank; -1 when not open
  std::vector<std::unique_ptr<CallThread>> call_threads_;
};

}  // namespace cleave
