#include "cleave/comm/bootstrap/rank_process.h"

#include <atomic>
#include <iostream>

#include "cleave/comm/bootstrap/rendezvous.h"
#include "cleave/comm/shm/rank_endpoint.h"

namespace cleave::inline comm {

bool report_to_launcher(const Error& failure) {
  try {
    const auto environment = read_environment();
    if (!environment || environment->job_fd < 0) return false;
    SharedSegment::attach(environment->job_fd)
        ->abort({.rank = environment->rank,
                 .code = failure.code(),
                 .group = "",
                 .text = failure.what()});
    return true;
  } catch (const Error&) {
    return false;  // not started by `cleave launch`, or the job has ended and its segment is gone
  }
}

void run_as_rank(const Environment& launched, const std::function<void(World&)>& body,
                 const RankOptions& options) {
  // The shared segment of `cleave launch` serves one job. If the same processes run another job,
  // its ranks find each other as under other launchers.
  static std::atomic<bool> has_used_segment = false;
  Environment environment = launched;
  if (environment.job_fd >= 0 && has_used_segment.exchange(true)) environment.job_fd = -1;
  const std::unique_ptr<World> world = connect(environment, options);
  try {
    body(*world);
  } catch (...) {
    // Before `world` is destroyed, which would look like an orderly exit.
    const Error error = as_error(std::current_exception());
    world->abort(error);
    const std::string text = str("rank ", environment.rank, ": ", error.what());
    if (environment.job_fd >= 0) throw ReportedError(error.code(), text);
    throw Error(error.code(), text);
  }
}

int run_rank(const Environment& environment, const std::function<void(World&)>& body,
             const RankOptions& options) {
  try {
    run_as_rank(environment, body, options);
    return 0;
  } catch (const ReportedError& error) {
    return static_cast<int>(error.code());
  } catch (...) {
    const Error error = as_error(std::current_exception());
    std::cerr << str("cleave: ", error.what(), "\n");
    return static_cast<int>(error.code());
  }
}

}  // namespace cleave::inline comm
