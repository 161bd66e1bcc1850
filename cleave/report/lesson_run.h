#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cleave::inline report {

/// A collective or message of a recorded step.
struct LessonCall {
  std::string op;            ///< "all_reduce", "send", ...
  std::string axis;          ///< "tp", ...
  std::string site;          ///< who calls
  bool is_in_layer = false;  ///< on the rank's thread, during a layer's forward or backward
  int64_t sent = 0;          ///< bytes, by this rank
};

/// A forward or backward of a pipeline's schedule.
struct LessonAction {
  bool is_forward = false;
  int stage = 0;
  int micro_batch = 0;
  double cpu_s = 0;  ///< CPU time of the rank's thread, without that of messages
};

/// What one rank did in a recorded step.
struct LessonRank {
  std::vector<LessonCall> calls;
  std::vector<LessonAction> actions;  ///< in order
  double layers_cpu_s = 0;  ///< CPU time of the layers' forward and backward, without collectives
  int64_t weights = 0, gradients = 0, moments = 0;  ///< bytes held
  int64_t peak = 0;      ///< bytes of all tensors in the run's first two steps
  int64_t gathered = 0;  ///< bytes of weights that FSDP has gathered, at their peak in the step
};

/// A recorded step, for the numbers of a lesson.
struct LessonRun {
  std::vector<LessonRank> ranks;
};

/// Reads replay.json and the record of a run folder. Throws Error(kIo), Error(kFormat).
LessonRun read_lesson_run(const std::string& folder);

/// The time in which the ranks of a pipeline wait, as a share of the time in which they work, if
/// every rank had a core of its own and messages took no time: the recorded actions in their
/// recorded order, with their CPU times. `ranks` are the pipeline's, one stage each, first stage
/// first. Throws Error(kFormat) if the actions wait for each other.
double bubble_of(const std::vector<LessonRank>& ranks);

/// The most micro-batches whose forward but not yet whose backward a rank has done.
int most_in_flight(const LessonRank& rank);

}  // namespace cleave::inline report
