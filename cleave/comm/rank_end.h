#pragma once
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cleave/comm/call_thread.h"
#include "cleave/comm/job_page.h"
#include "cleave/comm/page_mirror.h"
#include "cleave/comm/world.h"

namespace cleave {

/// What ended a rank, as an Error: an Error itself; std::bad_alloc, what libtorch says of memory,
/// and a thread that cannot start, is kMemory; what <filesystem> throws is kIo; anything else is
/// kBug with its text.
Error as_error(const std::exception_ptr& caught);

/// One rank's end of the job page: who it is, how long it waits, and how it fails.
class RankEnd {
 public:
  /// `mirror` carries what this rank does to ranks that do not share the page.
  RankEnd(std::shared_ptr<JobPage> page, int rank, const RankOptions& options,
          std::unique_ptr<PageMirror> mirror = nullptr);
  /// Tells the others that nothing more comes from this rank.
  ~RankEnd();
  RankEnd(const RankEnd&) = delete;
  RankEnd& operator=(const RankEnd&) = delete;

  [[nodiscard]] JobPage& page() const { return *page_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] RankSlot& slot() const { return page_->rank(rank_); }
  [[nodiscard]] const RankOptions& options() const { return options_; }
  /// nullptr when all ranks share the page.
  [[nodiscard]] PageMirror* mirror() const { return mirror_.get(); }
  /// How often the calling thread looks before its wait sleeps.
  [[nodiscard]] int num_spins() const;
  /// Chooses that anew, until all ranks have joined and said which processors they run on.
  void choose_num_spins();

  /// Throws what stopped the job when something did.
  void check() const {
    if (page_->is_aborted()) throw_stopped();
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

  /// Whether the process of another rank of this host has ended. Of another host PageMirror
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
  std::shared_ptr<JobPage> page_;
  int rank_;
  RankOptions options_;
  std::unique_ptr<PageMirror> mirror_;
  int num_exceptions_;  // in flight when this began
  std::atomic<int> num_spins_ = 0;
  std::atomic<bool> knows_processors_ = false;  // of all ranks
  std::mutex pidfds_mutex_;
  std::vector<int> pidfds_;  // by rank; -1 when not open
  std::vector<std::unique_ptr<CallThread>> call_threads_;
};

}  // namespace cleave
