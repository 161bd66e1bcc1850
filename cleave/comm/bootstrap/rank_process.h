#pragma once
#include <functional>

#include "cleave/comm/api/world.h"
#include "cleave/comm/bootstrap/environment.h"

namespace cleave::inline comm {

/// A failure of a rank that `cleave launch` has recorded and prints once for all ranks. The process
/// only exits with its code (report_failure() in comm/launch/failure.h does).
class ReportedError : public Error {
 public:
  using Error::Error;
};

/// Reports a failure of this process from before it joined its job to `cleave launch`, which prints
/// the first failure once for all ranks. Returns false if `cleave launch` did not start this
/// process.
bool report_to_launcher(const Error& failure);

/// Runs `body` as this process's rank. A failure is reported to all ranks, then thrown as an Error
/// that names the rank; under `cleave launch` as a ReportedError.
void run_as_rank(const Environment& environment, const std::function<void(World&)>& body,
                 const RankOptions& options);

/// Runs `body` as this process's rank and returns the process's exit code.
///
/// A failure is reported to all ranks and printed to stderr as one line, except under
/// `cleave launch`, which prints the root cause once for all ranks. A rank that stops because of
/// another rank's failure returns 6.
int run_rank(const Environment& environment, const std::function<void(World&)>& body,
             const RankOptions& options = {});

}  // namespace cleave::inline comm
