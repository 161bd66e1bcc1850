#pragma once
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cleave/comm/api/world.h"
#include "cleave/comm/net/tcp_replicator.h"
#include "cleave/comm/shm/call_thread.h"
#include "cleave/comm/shm/shared_segment.h"

namespace cleave::inline comm {

/// Converts an exception to an Error. std::bad_alloc, out-of-memory errors of libtorch and threads
/// that cannot start become kMemory, exceptions of <filesystem> kIo, and all others kBug with their
/// text. An Error stays as it is.
Error as_error(const std::exception_ptr& caught);

/// The state of a process as ps shows it: 'T' is stopped, 'Z' a zombie, '?' unknown, because /proc
/// is missing. 0 if there is no such process.
char process_state(int pid);

/// One rank's handle on the shared segment: its identity, its wait options, and how it fails.
class RankEndpoint {
 public:
  /// `replicator` connects ranks that do not share the segment.
  RankEndpoint(std::shared_ptr<SharedSegment> segment, int rank, const RankOptions& options,
               std::unique_ptr<TcpReplicator> replicator = nullptr);
  /// Records that this rank has left, in order or by an exception.
  ~RankEndpoint();
  RankEndpoint(const RankEndpoint&) = delete;
  RankEndpoint& operator=(const RankEndpoint&) = delete;

  [[nodiscard]] SharedSegment& segment() const { return *segment_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] RankSlot& slot() const { return segment_->rank(rank_); }
  [[nodiscard]] const RankOptions& options() const { return options_; }
  /// The other segment of this rank in a job on several hosts, for messages; nullptr if none.
  [[nodiscard]] const SharedSegment* beside() const { return beside_.get(); }
  void set_beside(std::shared_ptr<const SharedSegment> segment) { beside_ = std::move(segment); }
  /// nullptr when all ranks share the segment.
  [[nodiscard]] TcpReplicator* replicator() const { return replicator_.get(); }
  /// Sets a function that every longer wait of this rank calls repeatedly, in any of its threads.
  /// Call it before the first wait; by default there is none.
  void set_progress(std::function<void()> progress) { progress_ = std::move(progress); }
  void make_progress() const {
    if (progress_) progress_();
  }
  /// How often the calling thread spins before its wait sleeps.
  [[nodiscard]] int num_spins() const;
  /// Chooses num_spins(). Call it again until all ranks have joined and published their CPUs.
  void choose_num_spins();

  /// Throws the job's failure if there is one.
  void check() const {
    if (segment_->is_aborted()) throw_stopped();
  }

  /// Records `cause` as the job's first failure, with this rank's last operation; false if there is
  /// one already.
  bool abort(const Error& cause) const { return abort_for(rank_, cause); }

  /// The same for another rank, which is dead and cannot report it.
  bool abort_for(int rank, const Error& cause) const;

  /// Records and throws `cause`; throws the earlier failure if there is one.
  [[noreturn]] void fail(const Error& cause) const;

  /// Throws the recorded failure: a desync, which concerns all ranks, as Error(kDesync), any other
  /// as Error(kPeer).
  [[noreturn]] void throw_stopped() const;

  /// Whether the process of another rank of this host has died. TcpReplicator detects this for
  /// ranks of other hosts.
  [[nodiscard]] bool is_dead(int rank);

  /// Records which thread communicates for this rank; no effect inside a started call.
  void note_thread() const;

  /// Makes a helper thread for a group's started calls. It ends with end_call_threads(), not with
  /// the group: a rank that leaves by an exception reports this only after its groups are
  /// destroyed, and until then calls that wait for peers cannot end.
  CallThread& make_call_thread();
  void end_call_threads();

 private:
  std::shared_ptr<SharedSegment> segment_;
  std::shared_ptr<const SharedSegment> beside_;
  int rank_;
  RankOptions options_;
  std::unique_ptr<TcpReplicator> replicator_;
  std::function<void()> progress_;
  int num_exceptions_;  // uncaught when this object was made
  std::atomic<int> num_spins_ = 0;
  std::atomic<bool> knows_all_cpus_ = false;  // of all ranks
  std::mutex pidfds_mutex_;
  std::vector<int> pidfds_;  // by rank; -1 when not open
  std::vector<std::unique_ptr<CallThread>> call_threads_;
};

}  // namespace cleave::inline comm
