#pragma once
#include <memory>
#include <utility>

namespace cleave::inline comm {

/// While it exists, the calling thread is that of a rank of run_ranks().
class RankThread {
 public:
  RankThread() : before_(std::exchange(own, std::make_shared<const char>())) {}
  ~RankThread() { own = before_; }
  RankThread(const RankThread&) = delete;
  RankThread& operator=(const RankThread&) = delete;

  /// Identifies the calling thread's rank; expires when that rank ends. Null outside run_ranks().
  static const std::shared_ptr<const char>& current() { return own; }

 private:
  static inline thread_local std::shared_ptr<const char> own;
  std::shared_ptr<const char> before_;
};

}  // namespace cleave::inline comm
