#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/comm/api/group.h"

namespace cleave::inline comm {

class Device;

/// One rank's connection to all ranks of a job, over any transport.
class World {
 public:
  virtual ~World() = default;
  World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  /// A group of the given world ranks (ascending, including this rank). Only its members call this.
  /// Members that make several groups of the same ranks must make them in the same order.
  virtual std::shared_ptr<Group> group(const std::vector<int>& ranks, const std::string& name) = 0;

  /// Aborts the job: every rank's current or next collective throws Error(kPeer) with this cause.
  /// Only the first call of a job has an effect.
  virtual void abort(const Error& cause) = 0;

  /// True when the ranks are threads of this process.
  [[nodiscard]] virtual bool ranks_are_threads() const = 0;

  /// Records this rank's training step for error messages ("step 37"). Cheap; never waits.
  virtual void note_step(int64_t step) = 0;

  /// From now on, groups of this rank run collectives of device memory on `device`.
  virtual void use_device(std::shared_ptr<Device> device) = 0;

  /// Records the command that resumes the job after a failure, for the launcher's message. Rank 0
  /// calls this.
  virtual void note_resume_hint(std::string_view text) = 0;
};

struct RankOptions {
  double timeout_s = 60;           ///< longest wait inside a collective, > 0
  std::string flight_log_folder;   ///< where a timeout writes the last operations; "" for none
  std::string transport = "auto";  ///< between hosts: tcp, mpi, or auto (MPI where it is started)
  bool fast_sums = false;          ///< between hosts, MPI may add in an order of its own
};

/// Runs `body` on `num_ranks` rank threads of this process and returns when all have ended. If one
/// fails, all stop, and run_ranks() throws the first failure. A rank that does not stop, because it
/// waits for something other than a rank, ends the process with the failure's exit code: two
/// seconds after a timeout, options.timeout_s after any other failure.
void run_ranks(int num_ranks, const std::function<void(World&)>& body,
               const RankOptions& options = {});

}  // namespace cleave::inline comm
