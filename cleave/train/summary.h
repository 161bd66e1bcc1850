#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "cleave/checkpoint/load.h"
#include "cleave/comm/api/world.h"
#include "cleave/mesh/mesh.h"
#include "cleave/planner/machine.h"
#include "cleave/train/report.h"
#include "cleave/train/setup.h"

namespace cleave {

/// The command that continues a run: the one typed, with --resume.
std::string resume_command(const TrainOptions& options);

/// The lines that describe a run when it starts: model, ranks, data, steps and time. `model_name`
/// is the displayed name of the model.
std::vector<std::string> run_header(const TrainSetup& setup, const std::string& model_name,
                                    Model& model, const World& world, const Machine& machine);

/// "task    classify: 4 of 41 weights are newly initialized (bert.pooler.dense.bias ...), 7 tensors
/// of the folder are not used (...)", for a folder's model that is trained for another task.
std::string task_line(Model& model, const LoadResult& loaded);

/// The parts of a run's report that are known when it starts.
ReportData run_report(const TrainSetup& setup, const std::string& model_name, Model& model,
                      const Mesh& mesh);

/// This rank's optimizer and its peak of tensor memory.
struct HeldMemory {
  const Optimizer& optimizer;
  int64_t most_bytes = 0;
};

/// Bytes of every rank's tensors by kind, and their forecast; the same on all ranks. Collective.
std::vector<RankMemory> rank_memory(const TrainSetup& setup, const Axis& everyone, const Mesh& mesh,
                                    const HeldMemory& held);

/// The finished checkpoints of a run folder with their sizes.
std::vector<ReportCheckpoint> checkpoint_list(const std::filesystem::path& run);

}  // namespace cleave
