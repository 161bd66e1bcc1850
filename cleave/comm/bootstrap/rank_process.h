#pragma once
#include <functional>

#include "cleave/comm/bootstrap/environment.h"
#include "cleave/comm/api/world.h"

namespace cleave {

/// A failure of a rank that `cleave launch` knows of and prints, once for all ranks: the process
/// only has to end with its code (report_failure in comm/failure.h does).
class ReportedError : public Error {
 public:
  using Error::Error;
};

/// Records a failure of this process from before it joined its job, for `cleave launch`, which
/// prints the first one once for all ranks. Whether such a launcher is there.
bool report_to_launcher(const Error& failure);

/// Runs `body` as the one rank of this process. A failure is reported to all ranks, then thrown as
/// an Error that names the rank; under `cleave launch` as a ReportedError.
void run_as_rank(const Environment& environment, const std::function<void(World&)>& body,
                 const RankOptions& options = {});

/// Runs `body` as the one rank of this process and returns the process's exit code.
///
/// A failure is told to all ranks and printed to stderr as one line, except under `cleave launch`,
/// which prints the root cause once for all. A rank that stops because of another one returns 6.
int run_rank(const Environment& environment, const std::function<void(World&)>& body,
             const RankOptions& options = {});

}  // namespace cleave
