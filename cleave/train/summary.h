#pragma once
#include <string>
#include <vector>

#include "cleave/checkpoint/load.h"
#include "cleave/comm/api/world.h"
#include "cleave/mesh/mesh.h"
#include "cleave/planner/machine.h"
#include "cleave/report/record.h"
#include "cleave/train/rank_model.h"
#include "cleave/train/setup.h"

namespace cleave::inline train {

/// The command that continues a run: the one typed, with --resume.
std::string resume_command(const TrainOptions& options);

/// The lines that describe a run when it starts: model, ranks, data, steps and time. `model_name`
/// is the displayed name of the model.
std::vector<std::string> run_header(const TrainSetup& setup, const std::string& model_name,
                                    Model& model, const World& world, const Machine& machine);

/// "time    about 0.2s per step (matrix products 150ms, other 50ms)", with "at least" on GPUs,
/// where some kinds of work have no time.
std::string time_line(const StepTime& time, const Machine& machine);

/// "task    classify: 4 of 41 weights are newly initialized (bert.pooler.dense.bias ...), 7 tensors
/// of the folder are not used (...)", for a folder's model that is trained for another task.
std::string task_line(Model& model, const LoadResult& loaded);

/// What a run's report shows and is known when the run starts.
RunRecord run_record(const TrainSetup& setup, const std::string& model_name, Model& model,
                     const Mesh& mesh, const World& world);

/// Bytes of every rank's tensors by kind, and their forecast; the same on all ranks. `most_bytes`:
/// this rank's peak. Collective.
std::vector<RankMemory> rank_memory(const TrainSetup& setup, const Axis& everyone, const Mesh& mesh,
                                    RankModel& rank, int64_t most_bytes);

}  // namespace cleave::inline train
